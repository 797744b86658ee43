#include "fuzz/program.h"

#include <array>
#include <random>
#include <sstream>

namespace fsdp::fuzz {

namespace {

constexpr std::array kNames = {"backward",
                               "joint_backward",
                               "two_backwards",
                               "forward_only",
                               "kept_back",
                               "kept_back_block",
                               "kept_in_row",
                               "kept_gathered",
                               "synchronized",
                               "told",
                               "evaluate",
                               "evaluate_inference",
                               "evaluate_between",
                               "step",
                               "step_clipped",
                               "new_optimizer",
                               "zero_model",
                               "zero_optimizer",
                               "zero_some",
                               "scale_gradients",
                               "clip_norm",
                               "clip_infinity",
                               "clip_value",
                               "freeze",
                               "freeze_and_look",
                               "thaw",
                               "look",
                               "look_at_block",
                               "look_on_host",
                               "look_at_gradients",
                               "write_gradients",
                               "write_whole",
                               "write_data",
                               "write_slices",
                               "penalty",
                               "penalty_first",
                               "penalty_last",
                               "penalty_kept_back",
                               "keep_gradients",
                               "add_kept_gradients",
                               "drop_block",
                               "gates",
                               "gate_in_one_of_two",
                               "write_between",
                               "loop_inside",
                               "use_pointer",
                               "retain_graph",
                               "input_gradients",
                               "inputs_alone",
                               "given_alone",
                               "attack_and_train",
                               "nested_scopes",
                               "fail_forward",
                               "fail_backward",
                               "train_off_and_on",
                               "insight",
                               "save_and_load",
                               "save_beside",
                               "save_crowd",
                               "take_out_and_in",
                               "averaged",
                               "weighted",
                               "by_hand"};
static_assert(kNames.size() == static_cast<size_t>(Do::kCount));

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed * 7919 + 17) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  bool one_in(int n) { return below(n) == 0; }
  template <class E>
  E any() {
    return static_cast<E>(below(static_cast<int>(E::kCount)));
  }

 private:
  std::mt19937_64 engine_;
};

// What AdamW::step_in_backward() does not refuse, and what does not go back to a graph from before a step.
bool fits_steps_in_backward(Do what) {
  switch (what) {
    case Do::two_backwards:
    case Do::kept_back:
    case Do::kept_back_block:
    case Do::kept_in_row:
    case Do::kept_gathered:
    case Do::synchronized:
    case Do::nested_scopes:
    case Do::weighted:
    case Do::told:
    case Do::clip_norm:
    case Do::clip_infinity:
    case Do::clip_value:
    case Do::step_clipped:
    case Do::penalty:
    case Do::penalty_first:
    case Do::penalty_last:
    case Do::penalty_kept_back:
    case Do::retain_graph:
    case Do::fail_backward:
      return false;
    default:
      return true;
  }
}

// What is a cycle of its own, which has a plan only when it comes again.
bool makes_cycles(Do what) {
  switch (what) {
    case Do::joint_backward:
    case Do::two_backwards:
    case Do::kept_gathered:
    case Do::evaluate_between:
    case Do::drop_block:
    case Do::retain_graph:
    case Do::input_gradients:
    case Do::inputs_alone:
    case Do::given_alone:
    case Do::attack_and_train:
    case Do::nested_scopes:
      return true;
    default:
      return false;
  }
}

Kind choose_kind(Dice& dice, int ranks) {
  const Kind kind = dice.any<Kind>();
  if (ranks == 4) return kind;
  return kind >= Kind::hybrid ? Kind::full_shard : kind;
}

}  // namespace

const char* name_of(Do what) { return kNames[static_cast<size_t>(what)]; }

Program generate(uint64_t seed, int actions, bool other_device) {
  Dice dice(seed);
  Program p;
  p.ranks = other_device ? 1 + dice.below(2) : 1 + dice.below(4);
  p.net = {.width = 3 + dice.below(6),
           .blocks = 1 + dice.below(4),
           .tied = dice.one_in(3),
           .complex = dice.one_in(4),
           .integer = dice.one_in(5),
           .frozen = dice.one_in(5),
           .twice = !other_device && dice.one_in(3)};
  p.wrap = dice.any<Wrap>();
  p.kind = choose_kind(dice, p.ranks);
  p.compute = dice.one_in(2) ? Compute::as_kept : dice.any<Compute>();
  if (other_device && p.compute == Compute::bf16)
    p.compute = Compute::fp32;  // bits depend on the memory there
  p.optimizer = dice.any<Optimizer>();
  p.share = dice.one_in(2);
  p.inner = dice.one_in(5) && p.net.blocks > 1;
  p.codec = dice.one_in(8);
  p.slots = dice.below(4);
  p.replicate = dice.one_in(4) ? 8 : 0;
  p.prefetch = dice.one_in(2) ? 0 : dice.below(3);
  p.ahead = dice.one_in(2) ? -1 : dice.below(4);
  p.again = dice.one_in(3) && (!other_device || p.compute == Compute::as_kept);
  if (other_device) p.net.complex = p.codec = false;  // the toy has no complex views and no messages
  p.casts = dice.one_in(4);
  p.lists = dice.one_in(4) ? 1 + dice.below(1000) : 0;
  p.divide = dice.one_in(6) ? 1 + dice.below(5) : 0;
  p.checks = dice.one_in(6);
  if (other_device && dice.one_in(2)) p.offload = 1 + dice.below(7);
  // LibTorch's optimizers, and penalties over slices, want gradients where parameters are.
  if ((p.offload & 1) == 0) p.offload &= 4;
  // The host's AdamW is for fp32; what follows it is another program than in fp64.
  p.net.single = p.offload != 0 && dice.one_in(2);
  p.in_backward = p.net.single && (p.offload & 1) != 0 && dice.one_in(2);
  if (p.net.single && !dice.one_in(4)) p.optimizer = Optimizer::fused_adamw;
  if (p.in_backward) {
    p.optimizer = Optimizer::fused_adamw;
    p.checks = false;
  }
  for (int i = 0; i < actions; ++i) {
    // A plain step of training is what most programs do most of the time: it lets plans be made and followed.
    Do what = dice.one_in(3) ? Do::backward : dice.any<Do>();
    if (other_device && what == Do::look_on_host) what = Do::look;
    if (p.in_backward && !fits_steps_in_backward(what)) what = Do::backward;
    const Action action{what, dice.below(12), dice.below(12)};
    const int times = makes_cycles(what) && dice.one_in(2) ? 3 : 1;
    p.actions.insert(p.actions.end(), static_cast<size_t>(times), action);
    if (what == Do::backward && dice.one_in(2)) {
      p.actions.push_back({Do::step});
      p.actions.push_back({dice.one_in(2) ? Do::zero_model : Do::zero_optimizer});
    }
  }
  return p;
}

bool goes_backward(const Action& action) {
  switch (action.what) {
    case Do::backward:
    case Do::joint_backward:
    case Do::evaluate_between:
    case Do::drop_block:
    case Do::gates:
    case Do::gate_in_one_of_two:
    case Do::input_gradients:
    case Do::attack_and_train:
      return true;
    case Do::by_hand:
      return action.a % 4 != 0;
    case Do::given_alone:
      return action.a % 2 == 1;
    default:
      return false;
  }
}

bool holds_blocks(const Program& program) {
  return (program.wrap == Wrap::blocks || program.wrap == Wrap::cut) && program.replicate == 0;
}

std::string to_code(const Program& p) {
  std::ostringstream out;
  const auto flag = [](bool on) { return on ? "true" : "false"; };
  out << "Program{.ranks = " << p.ranks << ",\n  .net = {.width = " << p.net.width
      << ", .blocks = " << p.net.blocks << ", .tied = " << flag(p.net.tied)
      << ", .complex = " << flag(p.net.complex) << ", .integer = " << flag(p.net.integer)
      << ", .single = " << flag(p.net.single) << ", .frozen = " << flag(p.net.frozen)
      << ", .twice = " << flag(p.net.twice) << "},\n  .wrap = Wrap(" << static_cast<int>(p.wrap)
      << "), .kind = Kind(" << static_cast<int>(p.kind) << "), .compute = Compute("
      << static_cast<int>(p.compute) << "), .optimizer = Optimizer(" << static_cast<int>(p.optimizer)
      << "),\n  .share = " << flag(p.share) << ", .inner = " << flag(p.inner)
      << ", .codec = " << flag(p.codec) << ", .slots = " << p.slots << ", .replicate = " << p.replicate
      << ", .prefetch = " << p.prefetch << ", .ahead = " << p.ahead << ", .again = " << flag(p.again)
      << ", .casts = " << flag(p.casts) << ", .lists = " << p.lists << ", .divide = " << p.divide
      << ", .checks = " << flag(p.checks) << ", .offload = " << p.offload
      << ", .in_backward = " << flag(p.in_backward) << ",\n  .actions = {";
  for (const Action& one : p.actions)
    out << "\n    {Do::" << name_of(one.what) << ", " << one.a << ", " << one.b << "},";
  out << "}}";
  return out.str();
}

}  // namespace fsdp::fuzz
