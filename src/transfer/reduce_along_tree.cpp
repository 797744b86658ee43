// Reduce paths with a fixed order of additions: with a codec, and in reproducible mode.
#include <optional>
#include <utility>

#include "transfer/codec_transfers.h"
#include "transfer/flat.h"
#include "transfer/reduce_path.h"

namespace fsdp::detail {

namespace {

class SumThroughCodec final : public ReducePath {
 public:
  SumThroughCodec(const Comm& row, ReduceOp op, std::shared_ptr<const Codec> codec)
      : row_(row), op_(op), codec_(std::move(codec)) {}
  Work start(const at::Tensor& sum, const at::Tensor& buffer, const std::string& label) override {
    sum_along_tree(row_, as_reals(sum), as_reals(buffer), label, codec_.get());
    if (op_ == ReduceOp::average) at::Tensor(sum).div_(row_.size());
    return {};
  }

 private:
  Comm row_;
  ReduceOp op_;
  std::shared_ptr<const Codec> codec_;
};

class AlongTree final : public ReducePath {
 public:
  AlongTree(const Comm& ranks, const Comm* column, bool whole) : ranks_(ranks), whole_(whole) {
    if (column != nullptr) column_ = *column;
  }
  bool shares_buffer() const override { return !whole_; }
  Work start(const at::Tensor& sum, const at::Tensor& buffer, const std::string& label) override {
    sum_along_tree(ranks_, as_reals(sum), as_reals(buffer), label);
    if (column_) sum_along_tree(*column_, as_reals(sum), as_reals(sum.clone()), label);
    return {};
  }

 private:
  Comm ranks_;
  std::optional<Comm> column_;
  bool whole_;
};

}  // namespace

ReducePathPtr reduce_through_codec(const Comm& row, ReduceOp op, std::shared_ptr<const Codec> codec) {
  return std::make_unique<SumThroughCodec>(row, op, std::move(codec));
}
ReducePathPtr reduce_along_tree(const Comm& row, const Comm* column) {
  return std::make_unique<AlongTree>(row, column, /*whole=*/false);
}
ReducePathPtr reduce_whole_along_tree(const Comm& all) {
  return std::make_unique<AlongTree>(all, nullptr, /*whole=*/true);
}

}  // namespace fsdp::detail
