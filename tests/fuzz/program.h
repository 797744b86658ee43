// A random program: a model, how it is sharded, and what is done with it. Pure data; see generate().
//
// It is not written in C++ as the programs of support/twins.h are, which would be code: it must be drawn from
// a seed, made smaller when it fails, and printed. What ranks do to a plain model is compared in fp64 after
// every action, not to the bit at the end of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::fuzz {

// What a step of a program does. `a` and `b` of Action choose among blocks, parameters and amounts.
enum class Do : uint8_t {
  backward,            // forward, backward
  joint_backward,      // two forwards, one backward
  two_backwards,       // two forwards, a backward each, in the other order
  forward_only,        // a graph nobody goes back through
  kept_back,           // forward and backward inside no_sync()
  kept_back_block,     // forward and backward inside no_sync() of a block
  kept_in_row,         // forward and backward inside no_sync({.rows_only = true}), and one after it
  kept_gathered,       // two forwards and backwards inside keep_gathered(), maybe of a block
  synchronized,        // forward and backward inside a no_sync() that moves; then synchronize_gradients()
  told,                // on_gradient() updates slices, and drops their gradients
  evaluate,            // forward without gradients
  evaluate_inference,  // in InferenceMode
  evaluate_between,    // once or twice between a forward and its backward, and maybe another forward
  step,                // the optimizer
  step_clipped,        // clips by the 2-norm, steps and drops the gradients
  new_optimizer,       // without momentum of before
  zero_model,          // model.zero_grad()
  zero_optimizer,      // optimizer.zero_grad()
  zero_some,           // every second slice loses its gradient
  scale_gradients,     // in place
  clip_norm,           // 2-norm
  clip_infinity,       // infinity norm
  clip_value,          //
  freeze,              // a parameter, in the module or by its slice; then an evaluation
  freeze_and_look,     // a parameter; then full_params() at once
  thaw,                // all parameters, in the module or by their slices
  look,                // full_params()
  look_at_block,       // full_params() of one module
  look_on_host,        // full_params() in host memory, on rank 0
  look_at_gradients,   // full_params() with gradients
  write_gradients,     // the same, changed and written back
  write_whole,         // full_params(true): values change
  write_data,          // full_params(true): set_data()
  write_slices,        // values change through model.parameters()
  penalty,             // over slices, backward of its own
  penalty_first,       // computed before forward, in one loss
  penalty_last,        // computed after forward, in one loss
  penalty_kept_back,   // in one loss, inside no_sync()
  keep_gradients,      // tensors of gradients are held, and zeroed in the model
  add_kept_gradients,  // slices get new tensors: held gradients and present ones added up
  drop_block,          // forward and backward that skip a block
  gates,               // forward and backward that use some blocks' gates: on the CPU each rank its own
  gate_in_one_of_two,  // two forwards, one backward; the gate is used in one of them
  write_between,       // run(): evaluate, write slices, evaluate
  loop_inside,         // run(): two steps of training
  use_pointer,         // run(): a kernel reads a parameter by pointer, in use()
  retain_graph,        // two backwards through one graph
  input_gradients,     // a penalty on the gradient of the input
  inputs_alone,        // the gradient of the input, and no backward
  given_alone,         // a backward to the input, or to one parameter
  attack_and_train,    // the gradient of the input twice, then forward and backward
  nested_scopes,     // inside keep_gathered(): no_sync(), an evaluation, the gradient of the input, backward
  fail_forward,      // it throws on all ranks
  fail_backward,     // it throws on all ranks
  train_off_and_on,  // eval(), evaluate, train()
  insight,           // memory_stats(), describe(), unit_counts()
  save_and_load,     // to a folder; into other groups, with another model, or with ignored parameters
  save_beside,       // in the background; the one before is loaded into another model and compared
  save_crowd,        // two savers and save() in one folder, none waited for before the next begins
  take_out_and_in,   // a state dict; values are spoilt in between
  averaged,          // an average of the model, updated twice, with other values in between
  weighted,  // two microbatches, one inside no_sync(), weighted by tokens that ranks count differently
  by_hand,   // units are gathered, and maybe released again, before a forward and inside it
  kCount
};

struct Action {
  Do what = Do::backward;
  int a = 0;
  int b = 0;
};

enum class Wrap : uint8_t { automatic, blocks, sizes, whole, cut, joined, kCount };
enum class Kind : uint8_t { full_shard, shard_grad_op, no_shard, hybrid, hybrid_zero2, group, kCount };
enum class Compute : uint8_t { as_kept, fp32, bf16, kCount };
enum class Optimizer : uint8_t { sgd, adamw, fused_adamw, kCount };

struct Net {
  int width = 5;
  int blocks = 3;
  bool tied = false;     // first and last layer share their weight
  bool complex = false;  // has a complex parameter
  bool integer = false;  // has an int64 parameter
  bool single = false;   // in fp32; else in fp64
  bool frozen = false;   // the first block's `up` starts frozen
  bool twice = false;    // the first block is called once more, after the last
};

struct Program {
  int ranks = 2;
  Net net;
  Wrap wrap = Wrap::blocks;
  Kind kind = Kind::full_shard;
  Compute compute = Compute::as_kept;
  Optimizer optimizer = Optimizer::sgd;
  bool share = true;         // shards
  bool inner = false;        // the second block is sharded before the model
  bool codec = false;        // one that loses nothing
  int slots = 2;             // limit_all_gathers
  int replicate = 0;         // replicate_below
  int prefetch = 0;          // backward_prefetch
  int ahead = -1;            // forward_prefetch; -1: not set
  bool again = false;        // some blocks are computed again in backward
  bool casts = false;        // cast_unit_inputs
  int lists = 0;             // seeds prefetch lists of units, and whether they reshard; 0: none
  int divide = 0;            // gradient_divide_factor; 0: not set
  bool checks = false;       // check_gradients
  int offload = 0;           // off the CPU: bits for parameters, gradients, optimizer
  bool in_backward = false;  // with offload: AdamW::step_in_backward()
  std::vector<Action> actions;
};

// The program of a seed. `other_device`: ranks use the same parameters, and nothing that the toy device
// lacks.
Program generate(uint64_t seed, int actions, bool other_device);

// Whether a step follows in a program with `in_backward`: it has gone backward.
bool goes_backward(const Action& action);

// Whether no_sync() of a block is that of its parameters alone: units hold those of one block.
bool holds_blocks(const Program& program);

// C++ that makes the same program: paste it into a test.
std::string to_code(const Program& program);
const char* name_of(Do what);

}  // namespace fsdp::fuzz
