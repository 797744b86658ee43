#include "files/safetensors.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <cstring>

#include "files/json.h"

namespace fsdp::testing {
namespace {

using detail::Json;
using detail::make_safetensors_header;
using detail::parse_safetensors_header;
using detail::read_safetensors_header;
using detail::SafetensorsEntry;
using detail::SafetensorsHeader;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

// A file that is only text in memory.
class TextFile final : public detail::OpenFile {
 public:
  explicit TextFile(std::string text) : text_(std::move(text)) {}
  void write(std::span<const std::byte> /*bytes*/, int64_t /*offset*/) override {}
  void read(std::span<std::byte> bytes, int64_t offset) const override {
    std::memcpy(bytes.data(), text_.data() + offset, bytes.size());
  }
  int64_t size() const override { return static_cast<int64_t>(text_.size()); }
  void sync() override {}
  void close() override {}

 private:
  std::string text_;
};

std::string with_length(const std::string& json, uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json;
}

std::string file_of(const std::string& json, size_t data_bytes) {
  return with_length(json, json.size()) + std::string(data_bytes, 'd');
}

SafetensorsHeader read(const std::string& bytes) { return read_safetensors_header(TextFile(bytes), "f"); }

void expect_refused(const std::string& bytes, const std::string& why) {
  EXPECT_THAT([&] { read(bytes); }, ThrowsMessage<CheckpointError>(HasSubstr(why)));
  EXPECT_THAT([&] { read(bytes); }, ThrowsMessage<CheckpointError>(StartsWith("f")));
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, ComeBackAsTheyWereWritten) {
  const std::vector<SafetensorsEntry> tensors{
      {.name = "weight", .dtype = "F32", .shape = {2, 3}, .begin = 0, .end = 24},
      {.name = "none", .dtype = "BF16", .shape = {0, 7}, .begin = 24, .end = 24},
      {.name = "a scalar", .dtype = "I64", .shape = {}, .begin = 24, .end = 32}};
  for (const int64_t align : {8, 64, 4096}) {
    const std::string header = make_safetensors_header(tensors, {{"format", "pt"}}, align);
    EXPECT_EQ(static_cast<int64_t>(header.size()) % align, 0);
    const SafetensorsHeader back = read(header + std::string(32, 'x'));
    EXPECT_EQ(back.bytes, static_cast<int64_t>(header.size()));
    EXPECT_EQ(back.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
    ASSERT_EQ(back.tensors.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(back.tensors[i].name, tensors[i].name);
      EXPECT_EQ(back.tensors[i].dtype, tensors[i].dtype);
      EXPECT_EQ(back.tensors[i].shape, tensors[i].shape);
      EXPECT_EQ(back.tensors[i].begin, tensors[i].begin);
      EXPECT_EQ(back.tensors[i].end, tensors[i].end);
    }
  }
}

TEST(Safetensors, EveryDtypeHasItsSize) {
  for (const auto& [dtype, bytes] : std::map<std::string, int64_t>{{"BOOL", 1},
                                                                   {"U8", 1},
                                                                   {"I8", 1},
                                                                   {"F8_E5M2", 1},
                                                                   {"F8_E4M3", 1},
                                                                   {"I16", 2},
                                                                   {"U16", 2},
                                                                   {"F16", 2},
                                                                   {"BF16", 2},
                                                                   {"I32", 4},
                                                                   {"U32", 4},
                                                                   {"F32", 4},
                                                                   {"F64", 8},
                                                                   {"I64", 8},
                                                                   {"U64", 8},
                                                                   {"C64", 8}}) {
    EXPECT_EQ(detail::dtype_bytes(dtype), bytes) << dtype;
    EXPECT_NO_THROW(read(
        file_of(one(dtype, "[3]", "[0," + std::to_string(3 * bytes) + "]"), static_cast<size_t>(3 * bytes))));
  }
  EXPECT_EQ(detail::dtype_bytes("f32"), 0);
  EXPECT_EQ(detail::dtype_bytes(""), 0);
}

TEST(Safetensors, AnEmptyFileOfTensorsIsOne) {
  EXPECT_TRUE(read(file_of("{}", 0)).tensors.empty());
  EXPECT_TRUE(read(make_safetensors_header({}, {})).tensors.empty());
}

TEST(Safetensors, HeadersOfEveryLengthAreHeaders) {
  // 640 is \x80\x02, with which a pickle begins.
  for (size_t length = 2; length < 3000; ++length) {
    std::string json = "{}";
    json.resize(length, ' ');
    EXPECT_NO_THROW(read(file_of(json, 0))) << length;
  }
}

TEST(Safetensors, RefusesWhatIsTooShort) {
  for (size_t n = 0; n < 8; ++n) expect_refused(std::string(n, '\0'), "too short");
  expect_refused(std::string(8, '\0'), "not JSON");
}

TEST(Safetensors, RefusesLengthsThatDoNotFit) {
  expect_refused(with_length("{}", 3), "would have 3 bytes");
  expect_refused(with_length("{}", UINT64_MAX), "damaged");
  expect_refused(with_length("{}", uint64_t{1} << 63), "damaged");
  expect_refused(with_length("{}", uint64_t{1} << 40), "damaged");
  EXPECT_THROW(parse_safetensors_header(with_length("{}", 2), 9, "f"), CheckpointError);
  const std::string large = with_length("{}", (uint64_t{32} << 20) + 1);
  EXPECT_THROW(parse_safetensors_header(large, int64_t{1} << 50, "f"), CheckpointError);
}

TEST(Safetensors, RefusesWhatIsNoHeader) {
  for (const char* json : {"", " ", "{", "{]", "nul", "{}{}", "{\"a\":1e999}", "\xff{}", "{\"\xc3\x28\":{}}"})
    expect_refused(file_of(json, 0), "not JSON");
  for (const char* json : {"[]", "1", "null", "\"{}\""}) expect_refused(file_of(json, 0), "not an object");
  for (const char* json : {R"({"a":1})", R"({"a":[]})", R"({"a":null})", R"({"__metadata__":3})"})
    expect_refused(file_of(json, 0), "not an object");
  expect_refused(file_of(R"({"__metadata__":{"a":1}})", 0), "'a' is not a string");
  expect_refused(file_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "no 'dtype'");
  expect_refused(file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "no 'shape'");
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "no 'data_offsets'");
}

TEST(Safetensors, RefusesNamesThatAreThereTwice) {
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_refused(file_of(R"({"a":)" + entry + R"(,"a":)" + entry + "}", 1), "'a' is there twice");
  expect_refused(file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                 "twice");
}

TEST(Safetensors, RefusesDeepNesting) {
  expect_refused(file_of(std::string(200000, '['), 0), "nested deeper");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += R"({"a":)";
  expect_refused(file_of(objects, 0), "nested deeper");
}

TEST(Safetensors, RefusesNumbersThatDoNotFit) {
  expect_refused(file_of(one("F32", "[1]", "[0,5]"), 5), "do not make up");
  expect_refused(file_of(one("F32", "[2]", "[0,4]"), 4), "do not make up");
  expect_refused(file_of(one("F31", "[1]", "[0,4]"), 4), "unknown dtype");
  expect_refused(file_of(one("F32", "[1]", "[4,0]"), 4), "beginning and an end");
  expect_refused(file_of(one("F32", "[1]", "[0,4,4]"), 4), "beginning and an end");
  expect_refused(file_of(one("F32", "[1]", "[]"), 4), "beginning and an end");
  expect_refused(file_of(one("F32", "[1]", "[-4,0]"), 4), "not an integer");
  expect_refused(file_of(one("F32", "[-1]", "[0,4]"), 4), "not an integer");
  expect_refused(file_of(one("F32", "[1.0]", "[0,4]"), 4), "not an integer");
  expect_refused(file_of(one("F32", "[true]", "[0,4]"), 4), "not an integer");
  expect_refused(file_of(one("F32", "[9223372036854775808]", "[0,4]"), 4), "not an integer");
  expect_refused(file_of(one("F32", "1", "[0,4]"), 4), "not a list");
  expect_refused(file_of(one("F32", "[4611686018427387905]", "[0,4]"), 4), "do not make up");
  expect_refused(file_of(one("F64", "[2147483648,2147483648,2]", "[0,0]"), 0), "counted");
  expect_refused(file_of(one("F64", "[9223372036854775807]", "[0,9223372036854775807]"), 0),
                 "do not make up");
}

TEST(Safetensors, RefusesTensorsThatDoNotFillTheFile) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_NO_THROW(read(file_of(two("[4,8]", "[0,4]"), 8)));
  expect_refused(file_of(two("[0,4]", "[5,9]"), 9), "does not begin where");
  expect_refused(file_of(two("[0,4]", "[3,7]"), 7), "does not begin where");
  expect_refused(file_of(two("[0,4]", "[0,4]"), 4), "does not begin where");
  expect_refused(file_of(two("[1,5]", "[5,9]"), 9), "does not begin where");
  expect_refused(file_of(two("[0,4]", "[4,8]"), 9), "tensors have 8 bytes, the file has 9");
  expect_refused(file_of(two("[0,4]", "[4,8]"), 7), "tensors have 8 bytes, the file has 7");
}

TEST(Safetensors, SaysWhatOtherFilesAre) {
  expect_refused(std::string("PK\x03\x04\0\0\0\0\0\0archive/data.pkl", 26), "zip archive");
  expect_refused("PK\x03\x04", "TorchScript");
  expect_refused(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15), "pickle");
  expect_refused(std::string("\x80\x04\x95\x01\0\0\0\0\0\0\0}\x94.", 14), "pickle");
  expect_refused(std::string("\x80\x02}q.", 5), "pickle");
  for (const std::string& start : {std::string("PK\x03\x04 and more"), std::string("\x80\x02}q.")})
    expect_refused(start, "save_file");
}

TEST(Safetensors, NamesInMessagesAreShort) {
  const std::string json = "{\"" + std::string(100000, 'n') + "\":1}";
  try {
    read(file_of(json, 0));
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_LT(std::strlen(error.what()), 400U);
  }
}

}  // namespace
}  // namespace fsdp::testing
