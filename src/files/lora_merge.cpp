#include "files/lora_merge.h"

#include <fsdp/error.h>

#include <algorithm>
#include <cstring>

#include "files/cast_elements.h"

namespace fsdp::detail {

namespace {

constexpr const char* kA = ".lora_A.weight";
constexpr const char* kB = ".lora_B.weight";

bool is_adapter(const std::string& name) { return name.ends_with(kA) || name.ends_with(kB); }

// A whole tensor [rows, columns].
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix transposed() const {
    Matrix other{.rows = columns, .columns = rows, .values = std::vector<double>(values.size())};
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        other.values[static_cast<size_t>(j * rows + i)] = values[static_cast<size_t>(i * columns + j)];
    return other;
  }
};

Matrix read_matrix(CheckpointReader& source, const std::string& name) {
  const SavedTensor& saved = source.manifest().tensors.at(name);
  if (saved.shape.size() != 2 || !is_castable(saved.dtype))
    throw CheckpointError(source.folder() + ": adapter '" + printable(name) +
                          "' is no matrix of floating-point numbers");
  SavedTensorReader reader(source, saved);
  std::vector<std::byte> bytes, wide;
  reader.read(0, reader.bytes(),
              [&](std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); });
  cast_elements(saved.dtype, bytes, "F64", wide);
  Matrix matrix{.rows = saved.shape[0], .columns = saved.shape[1], .values = {}};
  matrix.values.resize(wide.size() / sizeof(double));
  if (!wide.empty()) std::memcpy(matrix.values.data(), wide.data(), wide.size());
  return matrix;
}

LowRankMatrix product(Matrix left, Matrix right, double scale) {
  for (double& value : left.values) value *= scale;
  return {.rows = left.rows,
          .rank = right.rows,
          .columns = right.columns,
          .left = std::move(left.values),
          .right = std::move(right.values)};
}

}  // namespace

void LowRankMatrix::add_to(std::span<double> values, int64_t first) const {
  for (size_t done = 0; done < values.size();) {
    const int64_t at = first + static_cast<int64_t>(done), row = at / columns, column = at % columns;
    const size_t n = std::min(values.size() - done, static_cast<size_t>(columns - column));
    for (int64_t r = 0; r < rank; ++r) {
      const double factor = left[static_cast<size_t>(row * rank + r)];
      const double* from = right.data() + r * columns + column;
      for (size_t i = 0; i < n; ++i) values[done + i] += factor * from[i];
    }
    done += n;
  }
}

TensorTable take_adapters(TensorTable& table) {
  TensorTable adapters;
  for (const auto& [name, kind] : table)
    if (is_adapter(name)) adapters[name] = kind;
  for (const auto& [name, kind] : adapters) table.erase(name);
  return adapters;
}

std::map<std::string, LowRankMatrix> read_adapters(CheckpointReader& source, const TensorTable& adapters,
                                                   const Json& lora, bool transposed) {
  if (adapters.empty()) return {};
  const JsonObject config(lora, source.folder() + ", 'lora' of its model_config");
  const int64_t rank = config.integer("rank", 1);
  const double scale = config.number("alpha") / static_cast<double>(rank);
  std::map<std::string, LowRankMatrix> matrices;
  for (const auto& [name, kind] : adapters) {
    const std::string layer = name.substr(0, name.size() - std::strlen(kA));
    if (!adapters.contains(layer + kA) || !adapters.contains(layer + kB))
      throw CheckpointError(source.folder() + ": '" + printable(name) + "' has no counterpart");
    if (matrices.contains(layer + ".weight")) continue;
    Matrix a = read_matrix(source, layer + kA), b = read_matrix(source, layer + kB);
    if (a.rows != rank || b.columns != rank)
      throw CheckpointError(source.folder() + ": the adapter of '" + printable(layer) +
                            "' is not of the rank " + std::to_string(rank) + " that its model_config says");
    matrices[layer + ".weight"] = transposed ? product(a.transposed(), b.transposed(), scale)
                                             : product(std::move(b), std::move(a), scale);
  }
  return matrices;
}

}  // namespace fsdp::detail
