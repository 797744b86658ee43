#include "fuzz/options.h"

#include <random>

#include "fuzz/actions.h"
#include "fuzz/net.h"

namespace fsdp::fuzz {

using at::Tensor;

namespace {

// Sends what it is given, bit by bit.
class PlainCodec final : public Codec {
 public:
  explicit PlainCodec(at::ScalarType type) : type_(type) {}
  int64_t wire_bytes(int64_t numel) const override {
    return numel * static_cast<int64_t>(c10::elementSize(type_));
  }
  void encode(const Tensor& values, const Tensor& wire) const override { wire.view(type_).copy_(values); }
  void decode(const Tensor& wire, const Tensor& values) const override { values.copy_(wire.view(type_)); }

 private:
  at::ScalarType type_;
};

WrapPolicy policy_of(const Program& program) {
  switch (program.wrap) {
    case Wrap::automatic:
      return {};
    case Wrap::whole:
      return whole_model();
    case Wrap::sizes:
      return by_size(40);
    default:
      return by_type<BlockImpl>();
  }
}

// Blocks that a unit gathers when it is used: any, in any order. And whether it is kept after forward.
UnitOptions lists_of(const Program& program, const std::string& unit) {
  std::mt19937_64 dice(static_cast<uint64_t>(program.lists) * 31 + std::hash<std::string>()(unit));
  const auto draw = [&]() -> std::optional<std::vector<std::string>> {
    if (dice() % 3 == 0) return std::nullopt;
    std::vector<std::string> names;
    for (auto n = dice() % 3; n > 0; --n)
      names.push_back("block" + std::to_string(dice() % static_cast<uint64_t>(program.net.blocks)));
    return names;
  };
  UnitOptions own;
  own.forward_prefetch = draw();
  own.backward_prefetch = draw();
  if (program.lists % 2 == 0 && dice() % 2 == 0) own.reshard_after_forward = dice() % 2 == 0;
  return own;
}

}  // namespace

ShardOptions options_of(const Program& program, const CommOptions& comm) {
  ShardOptions options{.wrap = policy_of(program)};
  constexpr Strategy kStrategies[] = {Strategy::full_shard,         Strategy::shard_grad_op,
                                      Strategy::no_shard,           Strategy::hybrid_shard,
                                      Strategy::hybrid_shard_zero2, Strategy::full_shard};
  options.strategy = kStrategies[static_cast<size_t>(program.kind)];
  if (program.kind == Kind::hybrid || program.kind == Kind::hybrid_zero2) options.shard_size = 2;
  if (program.kind == Kind::group) options.reshard_group = 2;
  if (program.compute != Compute::as_kept)
    options.precision = {.param = compute_type(program), .reduce = at::kDouble};
  if (program.wrap == Wrap::cut) options.max_unit_bytes = 400;
  if (program.wrap == Wrap::joined) options.min_unit_bytes = 2000;
  options.share_shards = program.share;
  options.limit_all_gathers = program.slots;
  options.replicate_below = program.replicate;
  options.backward_prefetch = static_cast<BackwardPrefetch>(program.prefetch);
  if (program.ahead >= 0) options.forward_prefetch = program.ahead;
  if (program.lists > 0 && program.wrap == Wrap::blocks && !program.inner)
    options.unit = [&program](const std::string& unit) { return lists_of(program, unit); };
  options.cast_unit_inputs = program.casts;
  options.check_gradients = program.checks;
  if (program.divide > 0) options.gradient_divide_factor = program.divide;
  options.offload = {.params = (program.offload & 1) != 0,
                     .gradients = (program.offload & 2) != 0,
                     .optimizer = (program.offload & 4) != 0};
  if (program.codec) {
    options.gather_codec = std::make_shared<PlainCodec>(at::kDouble);
    options.reduce_codec = std::make_shared<PlainCodec>(at::kDouble);
  }
  options.comm = comm;
  return options;
}

}  // namespace fsdp::fuzz
