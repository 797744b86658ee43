#include "shard/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "base/hash.h"
#include "watch/quiet.h"
#include "watch/tag.h"

namespace fsdp::detail {

namespace {

// Strides of dense tensors that are not row-major; strides of dimensions of extent 1 do not count.
std::string strides_fact(const at::Tensor& tensor) {
  if (tensor.is_contiguous() || !tensor.is_non_overlapping_and_dense()) return "";
  std::vector<int64_t> strides;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) > 1) strides.push_back(tensor.stride(i));
  return c10::str(", strides ", at::IntArrayRef(strides));
}

std::string tensor_fact(const char* kind, const std::string& name, const at::Tensor& tensor) {
  return c10::str(kind, " '", name, "' ", tensor.sizes(), " ", tensor.scalar_type());
}

std::string param_fact(const FoundParam& param) {
  const bool strided = param.tensor.layout() == at::kStrided;
  std::string fact = tensor_fact("parameter", param.names.front(), param.tensor);
  if (strided) fact += strides_fact(param.tensor);
  for (size_t i = 1; i < param.names.size(); ++i) fact += ", tied to '" + param.names[i] + "'";
  if (!param.tensor.requires_grad()) fact += ", frozen";
  if (tag_of(param.tensor) != nullptr) fact += ", sharded before";
  return fact;
}

const char* yes_or_no(bool on) { return on ? " true" : " false"; }

const char* name_of(BackwardPrefetch policy) {
  switch (policy) {
    case BackwardPrefetch::pre:
      return "pre";
    case BackwardPrefetch::post:
      return "post";
    default:
      return "none";
  }
}

const char* name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::full_shard:
      return "full_shard";
    case Strategy::shard_grad_op:
      return "shard_grad_op";
    case Strategy::no_shard:
      return "no_shard";
    case Strategy::hybrid_shard:
      return "hybrid_shard";
    case Strategy::hybrid_shard_zero2:
      return "hybrid_shard_zero2";
  }
  return "?";
}

// "precision.param BFloat16", or "no precision.param" if it is left to the module.
void add_types(Facts& facts, const std::string& name, const Precision& precision) {
  const auto add = [&](const char* field, const std::optional<at::ScalarType>& type) {
    facts.push_back(type ? c10::str(name, ".", field, " ", *type) : c10::str("no ", name, ".", field));
  };
  add("param", precision.param);
  add("reduce", precision.reduce);
  add("output", precision.output);
  add("buffer", precision.buffer);
  add("master", precision.master);
  facts.push_back(name + ".keep_low_precision_grads" + yes_or_no(precision.keep_low_precision_grads));
  facts.push_back(name + ".cast_inputs" + yes_or_no(precision.cast_inputs));
}

void add_list(std::string& fact, const char* name, const std::optional<std::vector<std::string>>& units) {
  if (!units) return;
  fact += c10::str(", ", name, units->empty() ? " of none" : "");
  for (const std::string& unit : *units) fact += " '" + unit + "'";
}

void add_codec(Facts& facts, const char* name, const std::shared_ptr<const Codec>& codec) {
  constexpr int64_t kValues = 1024;
  facts.push_back(
      codec ? c10::str(name, " that makes ", codec->wire_bytes(kValues), " bytes of ", kValues, " values")
            : c10::str("no ", name));
}

void add_options(Facts& facts, const ShardOptions& options) {
  const auto add = [&](const char* name, int64_t value) { facts.push_back(c10::str(name, " ", value)); };
  const auto flag = [&](const char* name, bool on) { facts.push_back(std::string(name) + yes_or_no(on)); };
  facts.push_back(c10::str("strategy ", name_of(options.strategy)));
  add_types(facts, "precision", options.precision);
  for (const std::string& path : options.ignored) facts.push_back("ignored '" + path + "'");
  add("replicate_below", options.replicate_below);
  add("min_unit_bytes", options.min_unit_bytes);
  add("max_unit_bytes", options.max_unit_bytes);
  add("reshard_group", options.reshard_group);
  add("shard_size", options.shard_size);
  facts.push_back(options.gradients == ReduceOp::average ? "gradients averaged" : "gradients summed");
  if (options.gradient_divide_factor)
    facts.push_back(c10::str("gradient_divide_factor ", *options.gradient_divide_factor));
  add("limit_all_gathers", options.limit_all_gathers);
  add("forward_prefetch", options.forward_prefetch.value_or(-1));
  facts.push_back(c10::str("backward_prefetch ", name_of(options.backward_prefetch)));
  flag("share_shards", options.share_shards);
  flag("sync_module_states", options.sync_module_states);
  flag("sync_batchnorm", options.sync_batchnorm);
  flag("cast_unit_inputs", options.cast_unit_inputs);
  flag("check_gradients", options.check_gradients);
  add("check_replicas_every", options.check_replicas_every);
  flag("offload.params", options.offload.params);
  flag("offload.gradients", options.offload.gradients);
  if (options.reproducible)
    facts.push_back(c10::str("reproducible with ", options.reproducible->microbatches, " microbatches, seed ",
                             options.reproducible->seed, ", ", options.reproducible->threads, " threads"));
  else
    facts.push_back("no reproducible");
  add_codec(facts, "gather_codec", options.gather_codec);
  add_codec(facts, "reduce_codec", options.reduce_codec);
}

std::string text_of(const Facts& facts) {
  std::string text;
  for (const std::string& fact : facts) text += fact + "\n";
  return text;
}

int64_t text_hash(const std::string& text) {
  return static_cast<int64_t>(hash_bytes(kHashStart, text.data(), text.size()));
}

// Sends `text` of rank `root` to every rank.
std::string text_from(Comm& all, c10::Device device, int root, const std::string& text) {
  const at::Tensor length =
      at::full({1}, static_cast<int64_t>(text.size()), at::TensorOptions().dtype(at::kLong).device(device));
  all.broadcast(length, root, "what ranks have").wait();
  std::string received = text;
  received.resize(static_cast<size_t>(length.item<int64_t>()));
  if (received.empty()) return received;
  const at::Tensor host = at::from_blob(received.data(), {static_cast<int64_t>(received.size())}, at::kByte);
  const at::Tensor bytes = host.to(device, /*non_blocking=*/false, /*copy=*/true);
  all.broadcast(bytes, root, "what ranks have").wait();
  host.copy_(bytes);
  return received;
}

std::string line_at(const std::string& text, size_t begin) {
  return begin < text.size() ? text.substr(begin, text.find('\n', begin) - begin) : "nothing more";
}

// The first line in which `mine` and `first` differ, from each.
std::string difference(int rank, const std::string& mine, const std::string& first) {
  const auto apart = std::mismatch(mine.begin(), mine.end(), first.begin(), first.end()).first;
  const auto at = static_cast<size_t>(apart - mine.begin());
  const size_t line = at == 0 ? 0 : mine.rfind('\n', at - 1) + 1;
  return c10::str("rank ", rank, " has ", line_at(mine, line), " where rank 0 has ", line_at(first, line));
}

}  // namespace

Facts model_facts(const torch::nn::Module& module, const WalkedModule& walked, const ShardOptions& options) {
  Facts facts;
  for (const FoundParam& param : walked.params) facts.push_back(param_fact(param));
  if (options.sync_module_states)
    for (const auto& item : module.named_buffers())
      if (item.value().defined() && item.value().layout() == at::kStrided && !item.value().is_quantized())
        facts.push_back(tensor_fact("buffer", item.key(), item.value()));
  add_options(facts, options);
  return facts;
}

Facts unit_facts(const std::vector<PlannedUnit>& units) {
  Facts facts;
  for (const PlannedUnit& unit : units) {
    std::string fact =
        c10::str("unit '", unit.decl.name, "' of ", unit.decl.params.size(), " parameters from '",
                 unit.decl.params.front().name, "' to '", unit.decl.params.back().name, "'");
    if (unit.options.reshard_after_forward)
      fact += std::string(", reshard_after_forward") + yes_or_no(*unit.options.reshard_after_forward);
    if (unit.options.reshard_group) fact += c10::str(", reshard_group ", *unit.options.reshard_group);
    if (unit.options.precision) {
      Facts types;
      add_types(types, "precision", *unit.options.precision);
      for (const std::string& type : types) fact += ", " + type;
    }
    add_list(fact, "forward_prefetch", unit.options.forward_prefetch);
    add_list(fact, "backward_prefetch", unit.options.backward_prefetch);
    facts.push_back(fact);
    for (const ParamDecl& param : unit.decl.params)
      facts.push_back("'" + param.name + "' in unit '" + unit.decl.name + "'");
  }
  return facts;
}

void require_agreement(Comm& all, c10::Device device, const Facts& mine, const char* advice) {
  if (all.size() == 1) return;
  const Quiet quiet;
  const std::string text = text_of(mine);
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  at::Tensor hashes = at::empty({all.size()}, options);
  all.all_gather(hashes, at::full({1}, text_hash(text), options), "what ranks have").wait();
  hashes = hashes.cpu();
  const auto* hash = hashes.const_data_ptr<int64_t>();
  const auto other = std::find_if(hash, hash + all.size(), [&](int64_t one) { return one != hash[0]; });
  if (other == hash + all.size()) return;
  const auto rank = static_cast<int>(other - hash);
  const std::string first = text_from(all, device, 0, text);
  const std::string told =
      text_from(all, device, rank, all.rank() == rank ? difference(rank, text, first) : "");
  TORCH_CHECK(false, "fsdp: ranks disagree in fully_shard(): ", told, ". ", advice);
}

}  // namespace fsdp::detail
