#include "watch/op_traits.h"

#include <gtest/gtest.h>

#include <string>

#include "watch/sync_batch_norm.h"

namespace fsdp::detail {
namespace {

// Of "aten::name" or "aten::name.overload".
const OpTraits& traits(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return traits_of(c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                                  overload.c_str()));
}

TEST(OpTraits, OperatorsThatReadAreNoViewsAndWriteNothing) {
  for (const char* name :
       {"mm", "add.Tensor", "sum", "clone", "embedding", "native_layer_norm", "_foreach_add.List"}) {
    EXPECT_FALSE(traits(name).view) << name;
    EXPECT_FALSE(traits(name).metadata) << name;
    EXPECT_FALSE(traits(name).hides) << name;
    EXPECT_EQ(traits(name).writes, 0u) << name;
  }
}

TEST(OpTraits, WritesAreTheArgumentsThatTheSchemaMarks) {
  EXPECT_EQ(traits("add_.Tensor").writes, 0b1u);
  EXPECT_EQ(traits("copy_").writes, 0b1u);
  EXPECT_EQ(traits("add.out").writes, 0b1000u) << "self, other, alpha, out";
  EXPECT_EQ(traits("_foreach_add_.Scalar").writes, 0b1u) << "a list of tensors";
  EXPECT_EQ(traits("max.dim_max").writes, 0b11000u) << "two results";
  EXPECT_TRUE(traits("add_.Tensor").writes_argument(0));
  EXPECT_FALSE(traits("add_.Tensor").writes_argument(1));
  EXPECT_FALSE(traits("add_.Tensor").writes_argument(64)) << "further than is recorded";
}

TEST(OpTraits, ViewsShareTheMemoryOfAnInputAndReadNothing) {
  for (const char* name : {"view", "t", "transpose.int", "slice.Tensor", "select.int", "expand", "detach",
                           "as_strided", "split.Tensor", "unbind.int", "squeeze.dim"}) {
    EXPECT_TRUE(traits(name).view) << name;
    EXPECT_EQ(traits(name).writes, 0u) << name;
  }
}

TEST(OpTraits, WhatMayCopyIsNoViewThoughItsSchemaSaysSo) {
  for (const char* name : {"contiguous", "reshape", "to.dtype", "to.device", "flatten.using_ints"})
    EXPECT_FALSE(traits(name).view) << name;
}

TEST(OpTraits, WhatChangesOnlyWhatATensorIsHasMetadata) {
  for (const char* name : {"t_", "squeeze_", "transpose_", "detach_", "requires_grad_", "retain_grad"}) {
    EXPECT_TRUE(traits(name).metadata) << name;
    EXPECT_FALSE(traits(name).view) << name;
  }
  for (const char* name : {"add_.Tensor", "zero_", "view", "detach"})
    EXPECT_FALSE(traits(name).metadata) << name;
}

TEST(OpTraits, TensorsMadeOfOtherTensorsHideThem) {
  for (const char* name :
       {"sparse_coo_tensor.indices", "_sparse_coo_tensor_unsafe", "sparse_csr_tensor.crow_col_value_size",
        "set_.source_Tensor", "set_.source_Storage", "_nested_view_from_buffer"})
    EXPECT_TRUE(traits(name).hides) << name;
  for (const char* name : {"sparse_mask", "stack", "cat"}) EXPECT_FALSE(traits(name).hides) << name;
}

// What would be wrong for a slice of a parameter: see Note [Watched tensors].
TEST(OpTraits, OperatorsOverAllElementsAreKnown) {
  for (const char* name : {"norm.Scalar", "linalg_vector_norm", "_foreach_norm.Scalar"})
    EXPECT_TRUE(traits(name).norm) << name;
  for (const char* name : {"cat", "dot", "vdot"}) EXPECT_TRUE(traits(name).joins) << name;
  EXPECT_TRUE(traits("abs").absolute);
  for (const char* name : {"max", "max.dim", "amax", "aminmax"}) EXPECT_TRUE(traits(name).largest) << name;
  EXPECT_FALSE(traits("max.other").largest) << "of two tensors, element by element";
  EXPECT_FALSE(traits("mul.Tensor").norm || traits("mul.Tensor").joins || traits("mul.Tensor").absolute);
}

TEST(OpTraits, BatchNormOperatorsAreKnown) {
  EXPECT_EQ(traits("native_batch_norm").instead, &native_batch_norm);
  EXPECT_EQ(traits("native_batch_norm_backward").instead, &native_batch_norm_backward);
  EXPECT_EQ(traits("native_layer_norm").instead, nullptr);
}

}  // namespace
}  // namespace fsdp::detail
