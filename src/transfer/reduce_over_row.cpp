// Reduce paths without a codec: alone, whole, over the row, and from the row over the column.
#include <utility>

#include "transfer/flat.h"
#include "transfer/reduce_path.h"

namespace fsdp::detail {

namespace {

class Alone final : public ReducePath {
 public:
  explicit Alone(bool stays) : stays_(stays) {}
  bool alone() const override { return stays_; }
  bool in_buffer() const override { return true; }
  Work start(const at::Tensor& /*sum*/, const at::Tensor& /*buffer*/, const std::string& /*label*/) override {
    return {};
  }

 private:
  bool stays_;
};

class Whole final : public ReducePath {
 public:
  Whole(const Comm& all, ReduceOp op) : all_(all), op_(op) {}
  bool in_buffer() const override { return true; }
  Work start(const at::Tensor& /*sum*/, const at::Tensor& buffer, const std::string& label) override {
    return all_.all_reduce(as_reals(buffer), op_, label);
  }

 private:
  Comm all_;
  ReduceOp op_;
};

class Scatter final : public ReducePath {
 public:
  Scatter(const Comm& row, ReduceOp op) : row_(row), op_(op) {}
  Work start(const at::Tensor& sum, const at::Tensor& buffer, const std::string& label) override {
    return row_.reduce_scatter(as_reals(sum), as_reals(buffer), op_, 1.0, label);
  }

 private:
  Comm row_;
  ReduceOp op_;
};

class AcrossRows final : public ReducePath {
 public:
  AcrossRows(const Comm& column, ReduceOp op, ReducePathPtr inside)
      : column_(column), op_(op), inside_(std::move(inside)) {}
  Work start(const at::Tensor& sum, const at::Tensor& buffer, const std::string& label) override {
    return inside_->start(sum, buffer, label);
  }
  bool crosses() const override { return true; }
  Work cross(const at::Tensor& sum, const std::string& label) override {
    return column_.all_reduce(as_reals(sum), op_, label);
  }

 private:
  Comm column_;
  ReduceOp op_;
  ReducePathPtr inside_;
};

}  // namespace

ReducePathPtr reduce_alone() { return std::make_unique<Alone>(true); }
ReducePathPtr reduce_alone_in_buffer() { return std::make_unique<Alone>(false); }
ReducePathPtr reduce_whole(const Comm& all, ReduceOp op) { return std::make_unique<Whole>(all, op); }
ReducePathPtr reduce_over_row(const Comm& row, ReduceOp op) { return std::make_unique<Scatter>(row, op); }
ReducePathPtr reduce_across_rows(const Comm& column, ReduceOp op, ReducePathPtr inside_row) {
  return std::make_unique<AcrossRows>(column, op, std::move(inside_row));
}

}  // namespace fsdp::detail
