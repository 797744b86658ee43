#include "transfer/codec_transfers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

namespace fsdp {

namespace {

class CastCodec final : public Codec {
 public:
  explicit CastCodec(at::ScalarType type) : type_(type) {}
  int64_t wire_bytes(int64_t numel) const override {
    return numel * static_cast<int64_t>(c10::elementSize(type_));
  }
  void encode(const at::Tensor& values, const at::Tensor& wire) const override {
    wire.view(type_).copy_(values);
  }
  void decode(const at::Tensor& wire, const at::Tensor& values) const override {
    values.copy_(wire.view(type_));
  }

 private:
  at::ScalarType type_;
};

}  // namespace

std::shared_ptr<const Codec> cast_codec(at::ScalarType type) { return std::make_shared<CastCodec>(type); }

namespace detail {

namespace {

at::Tensor wires_for(const at::Tensor& like, int64_t count, int64_t bytes) {
  return at::empty({count, bytes}, like.options().dtype(at::kByte));
}

at::Tensor tree_sum(std::vector<at::Tensor> terms) {
  while (terms.size() > 1) {
    std::vector<at::Tensor> sums;
    for (size_t i = 0; i + 1 < terms.size(); i += 2) sums.push_back(terms[i] + terms[i + 1]);
    if (terms.size() % 2 == 1) sums.push_back(terms.back());
    terms = std::move(sums);
  }
  return terms.front();
}

// Sends every rank its part of this rank's inputs: rank r's is inputs[r]. Receives into outputs[r].
void exchange_parts(Comm& comm, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                    const std::string& label) {
  std::vector<Work> moving;
  for (int r = 0; r < comm.size(); ++r) {
    const auto at = static_cast<size_t>(r);
    if (r == comm.rank()) {
      outputs[at].copy_(inputs[at]);
      continue;
    }
    moving.push_back(comm.send(inputs[at], r, label));
    moving.push_back(comm.recv(outputs[at], r, label));
  }
  for (Work& one : moving) one.wait();
}

std::vector<at::Tensor> rows_of(const at::Tensor& flat, int count) {
  std::vector<at::Tensor> rows;
  const int64_t n = flat.numel() / count;
  for (int r = 0; r < count; ++r) rows.push_back(flat.view({-1}).narrow(0, r * n, n));
  return rows;
}

// All ranks' contributions to this rank's part, as they arrived.
std::vector<at::Tensor> collect(Comm& comm, const at::Tensor& input, int64_t n, const std::string& label,
                                const Codec* codec) {
  const int ranks = comm.size();
  const bool whole = n == input.numel();
  at::Tensor parts = at::empty({ranks * n}, input.options());
  if (codec == nullptr) {
    if (whole)
      comm.all_gather(parts, input, label).wait();
    else
      exchange_parts(comm, rows_of(input, ranks), rows_of(parts, ranks), label);
    return rows_of(parts, ranks);
  }
  const int64_t bytes = codec->wire_bytes(n);
  const at::Tensor received = wires_for(input, ranks, bytes);
  if (whole) {
    const at::Tensor wire = wires_for(input, 1, bytes).view({-1});
    codec->encode(input, wire);
    comm.all_gather(received.view({-1}), wire, label).wait();
  } else {
    const at::Tensor sent = wires_for(input, ranks, bytes);
    const auto from = rows_of(input, ranks);
    for (int r = 0; r < ranks; ++r) codec->encode(from[static_cast<size_t>(r)], sent[r]);
    exchange_parts(comm, rows_of(sent, ranks), rows_of(received, ranks), label);
  }
  auto terms = rows_of(parts, ranks);
  for (int r = 0; r < ranks; ++r) codec->decode(received[r], terms[static_cast<size_t>(r)]);
  return terms;
}

}  // namespace

EncodedGather start_gather(Comm& comm, const Codec& codec, const at::Tensor& shard,
                           const std::string& label) {
  const int64_t bytes = codec.wire_bytes(shard.numel());
  const at::Tensor wire = wires_for(shard, 1, bytes).view({-1});
  codec.encode(shard, wire);
  const at::Tensor wires = wires_for(shard, comm.size(), bytes);
  return {wires, comm.all_gather(wires.view({-1}), wire, label)};
}

void finish_gather(EncodedGather& gather, const Codec& codec, const at::Tensor& slot) {
  gather.work.wait();
  const auto parts = rows_of(slot, static_cast<int>(gather.wires.size(0)));
  for (size_t r = 0; r < parts.size(); ++r) codec.decode(gather.wires[static_cast<int64_t>(r)], parts[r]);
}

void sum_along_tree(Comm& comm, const at::Tensor& output, const at::Tensor& input, const std::string& label,
                    const Codec* codec) {
  const bool whole = output.numel() == input.numel();
  if (comm.size() == 1) {
    output.copy_(input);
  } else if (codec != nullptr || !comm.sums_in_order()) {
    output.copy_(tree_sum(collect(comm, input, output.numel(), label, codec)));
  } else if (whole) {
    output.copy_(input);
    comm.all_reduce(output, ReduceOp::sum, label).wait();
  } else {
    comm.reduce_scatter(output, input, ReduceOp::sum, 1.0, label).wait();
  }
}

}  // namespace detail
}  // namespace fsdp
