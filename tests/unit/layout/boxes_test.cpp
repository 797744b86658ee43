#include "layout/boxes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>

#include "layout/flat_layout.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Shape = std::vector<int64_t>;

TEST(Boxes, AVectorIsOneBox) { EXPECT_THAT(boxes_of({10}, 3, 4), ElementsAre(Box{{3}, {4}})); }

TEST(Boxes, AMatrixIsHeadRowsTail) {
  EXPECT_THAT(boxes_of({5, 4}, 3, 11),
              ElementsAre(Box{{0, 3}, {1, 1}}, Box{{1, 0}, {2, 4}}, Box{{3, 0}, {1, 2}}));
}

TEST(Boxes, WhatIsNotThereIsLeftOut) {
  EXPECT_THAT(boxes_of({5, 4}, 0, 20), ElementsAre(Box{{0, 0}, {5, 4}})) << "all of it";
  EXPECT_THAT(boxes_of({5, 4}, 4, 8), ElementsAre(Box{{1, 0}, {2, 4}})) << "whole rows";
  EXPECT_THAT(boxes_of({5, 4}, 5, 2), ElementsAre(Box{{1, 1}, {1, 2}})) << "inside a row";
  EXPECT_THAT(boxes_of({5, 4}, 6, 4), ElementsAre(Box{{1, 2}, {1, 2}}, Box{{2, 0}, {1, 2}}));
}

TEST(Boxes, ThreeDimensionsAreFiveBoxesAtWorst) {
  EXPECT_THAT(boxes_of({4, 3, 2}, 1, 22),
              ElementsAre(Box{{0, 0, 1}, {1, 1, 1}}, Box{{0, 1, 0}, {1, 2, 2}}, Box{{1, 0, 0}, {2, 3, 2}},
                          Box{{3, 0, 0}, {1, 2, 2}}, Box{{3, 2, 0}, {1, 1, 1}}));
}

TEST(Boxes, DimensionsOfOneAddNoBoxes) {
  EXPECT_THAT(boxes_of({1, 12}, 3, 5), ElementsAre(Box{{0, 3}, {1, 5}}));
  EXPECT_THAT(boxes_of({12, 1}, 3, 5), ElementsAre(Box{{3, 0}, {5, 1}}));
  EXPECT_THAT(boxes_of({2, 1, 3}, 2, 4), ElementsAre(Box{{0, 0, 2}, {1, 1, 1}}, Box{{1, 0, 0}, {1, 1, 3}}));
}

TEST(Boxes, AScalarIsOneBoxWithoutDimensions) {
  const auto boxes = boxes_of({}, 0, 1);
  EXPECT_THAT(boxes, ElementsAre(Box{}));
  EXPECT_EQ(boxes[0].numel(), 1);
}

TEST(Boxes, WithoutElementsThereAreNone) {
  EXPECT_THAT(boxes_of({0}, 0, 0), IsEmpty());
  EXPECT_THAT(boxes_of({3, 0, 2}, 0, 0), IsEmpty());
  EXPECT_THAT(boxes_of({}, 0, 0), IsEmpty());
  EXPECT_THAT(boxes_of({5, 4}, 20, 0), IsEmpty()) << "at the very end";
}

TEST(Boxes, LargeTensorsDoNotOverflow) {
  const int64_t n = int64_t{1} << 31;
  EXPECT_THAT(boxes_of({n, n / 2}, 0, n * (n / 2)), ElementsAre(Box{{0, 0}, {n, n / 2}}));
}

#if defined(FSDP_ASSERTS) && FSDP_ASSERTS
TEST(Boxes, ARangeOutsideTheTensorIsABug) {
  EXPECT_THROW(boxes_of({5, 4}, 15, 6), std::logic_error);
  EXPECT_THROW(boxes_of({5, 4}, -1, 2), std::logic_error);
  EXPECT_THROW(boxes_of({5, 4}, 1, -1), std::logic_error);
  EXPECT_THROW(boxes_of({0, 4}, 0, 1), std::logic_error);
}
#endif

// The elements of a box as flat indices, in row-major order.
std::vector<int64_t> elements(const Shape& shape, const Box& box) {
  std::vector<int64_t> flat{0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t outer : flat)
      for (int64_t i = 0; i < box.extent[d]; ++i) next.push_back(outer * shape[d] + box.start[d] + i);
    flat = std::move(next);
  }
  return flat;
}

void check_boxes(const Shape& shape, int64_t start, int64_t size) {
  const auto boxes = boxes_of(shape, start, size);
  ASSERT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size() - 1));
  std::vector<int64_t> covered;
  for (const Box& box : boxes) {
    ASSERT_EQ(box.start.size(), shape.size());
    ASSERT_EQ(box.extent.size(), shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      ASSERT_GE(box.start[d], 0);
      ASSERT_GE(box.extent[d], 1);
      ASSERT_LE(box.start[d] + box.extent[d], shape[d]);
    }
    const auto inside = elements(shape, box);
    ASSERT_EQ(box.numel(), static_cast<int64_t>(inside.size()));
    covered.insert(covered.end(), inside.begin(), inside.end());
  }
  ASSERT_EQ(static_cast<int64_t>(covered.size()), size);
  for (size_t i = 0; i < covered.size(); ++i)
    ASSERT_EQ(covered[i], start + static_cast<int64_t>(i)) << "each element once, in order";
}

Shape random_shape(std::mt19937& random) {
  Shape shape(random() % 6);
  for (int64_t& extent : shape) extent = static_cast<int64_t>(random() % 8 ? 1 + random() % 6 : random() % 2);
  return shape;
}

TEST(BoxesProperty, AnyRangeIsCoveredOnceInOrderByFewBoxes) {
  std::mt19937 random(seed());
  for (int round = repeats(500, 20000); round > 0; --round) {
    const Shape shape = random_shape(random);
    const int64_t numel = ParamDecl{.id = 0, .name = "", .shape = shape, .type = {}}.numel();
    const auto start = static_cast<int64_t>(random() % static_cast<size_t>(numel + 1));
    const auto size = static_cast<int64_t>(random() % static_cast<size_t>(numel - start + 1));
    check_boxes(shape, start, size);
    if (HasFatalFailure()) return;
  }
}

TEST(BoxesProperty, TheShardsOfAParameterCoverItOnEveryNumberOfRanks) {
  std::mt19937 random(seed());
  for (int round = repeats(3, 100); round > 0; --round) {
    UnitDecl unit{.name = "u", .params = {}};
    for (ParamId id = 0; id < 5; ++id)
      unit.params.push_back(
          {.id = id, .name = "p", .shape = random_shape(random), .type = {}, .trainable = true});
    for (int ranks = 1; ranks <= 64; ++ranks) {
      const UnitLayout layout = make_layout(unit, ranks, 0, random() % 2 ? kAlignBytes : 1);
      for (const Placement& param : layout.params) {
        int64_t covered = 0;
        for (const ShardRange& range : layout.ranges(param)) {
          ASSERT_EQ(range.start, covered);
          check_boxes(param.param.shape, range.start, range.size);
          if (HasFatalFailure()) return;
          covered += range.size;
        }
        ASSERT_EQ(covered, param.numel);
      }
    }
  }
}

// By definition: as many elements as the smallest box around them holds.
bool is_box(const Shape& shape, int64_t first, int64_t last) {
  int64_t around = 1, stride = 1;
  for (size_t d = shape.size(); d > 0; stride *= shape[--d]) {
    int64_t low = shape[d - 1], high = 0;
    for (int64_t i = first; i < last; ++i) {
      low = std::min(low, i / stride % shape[d - 1]);
      high = std::max(high, i / stride % shape[d - 1]);
    }
    around *= high - low + 1;
  }
  return around == last - first;
}

// Tries every way to cut ranges that start at `start`.
void check_fewest(const Shape& shape, int64_t start, int64_t numel) {
  struct Best {
    size_t boxes = 0, ways = 1;
  };
  std::vector<Best> best(1);  // of [start, start + index)
  for (int64_t end = start + 1; end <= numel; ++end) {
    Best here{.boxes = SIZE_MAX, .ways = 0};
    for (int64_t cut = start; cut < end; ++cut) {
      if (!is_box(shape, cut, end)) continue;
      const Best& before = best[static_cast<size_t>(cut - start)];
      if (before.boxes + 1 < here.boxes) here = {.boxes = before.boxes + 1, .ways = 0};
      if (before.boxes + 1 == here.boxes) here.ways += before.ways;
    }
    best.push_back(here);
    ASSERT_EQ(boxes_of(shape, start, end - start).size(), here.boxes) << start << " to " << end;
    ASSERT_EQ(here.ways, 1u) << start << " to " << end;
  }
}

TEST(BoxesProperty, NoCutIntoRunsHasFewerAndNoOtherAsFew) {
  const Shape shapes[] = {{7},       {4, 5},    {1, 9},       {9, 1},       {3, 1, 4},
                          {3, 3, 3}, {2, 3, 4}, {2, 2, 2, 3}, {2, 1, 3, 2}, {2, 2, 2, 2, 2}};
  for (const Shape& shape : shapes) {
    const int64_t numel = ParamDecl{.id = 0, .name = "", .shape = shape, .type = {}}.numel();
    for (int64_t start = 0; start < numel; ++start) {
      check_fewest(shape, start, numel);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
