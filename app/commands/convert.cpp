// `fsdp ckpt export` and `fsdp ckpt import`: weights from and to the layout of Hugging Face.
#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "app/commands/ckpt.h"
#include "app/exit_codes.h"
#include "app/output.h"

namespace fsdp::app {

namespace {

struct ConvertArguments {
  std::string from, to;
  std::string config;  // path
  bool hf = false, safetensors = false;
  bool json = false;
  ExportOptions out;
  HfImportOptions from_hf;
};

constexpr int64_t kMostConfigBytes = int64_t{1} << 20;

// Returns the text of a config: a file, or a pipe.
std::string read_config(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(kMostConfigBytes) + 1, '\0');
  file.read(text.data(), std::ssize(text));
  if (file.bad() || !file.is_open()) throw IoError("read", path, errno);
  if (file.gcount() > kMostConfigBytes)
    throw CheckpointError(path + " is no config: it has more than " + std::to_string(kMostConfigBytes) +
                          " bytes");
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Without words in --help. `wrong` says why a text is refused, or "" and may write it as CLI11 reads it.
CLI::Validator check(const std::function<std::string(std::string&)>& wrong) {
  return CLI::Validator(wrong, "");
}

CLI::Validator no_folder() {
  return check([](std::string& path) {
    return std::filesystem::is_directory(path) ? path + " is a folder; a JSON file is expected" : "";
  });
}

// Decimal digits at the beginning of `text`; they are taken away. CLI11's own conversion takes the nearest
// number that fits, and numbers that begin with 0 as octal.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

CLI::Validator step_number() {
  return check([](std::string& text) -> std::string {
    std::string_view rest = text;
    const auto number = take_number(rest);
    if (!number || !rest.empty())
      return "'" + text + "' is no step: a number from 0 to " + std::to_string(INT64_MAX) + " is expected";
    text = std::to_string(*number);
    return "";
  });
}

// 1000 for "KB", 1024 for "KiB", ...; 0 for what is no unit.
int64_t bytes_of(std::string unit) {
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (unit.empty() || unit == "b") return 1;
  const size_t power = std::string_view("kmgtp").find(unit[0]) + 1;
  const std::string rest = unit.substr(1);
  const bool binary = rest == "i" || rest == "ib";
  if (power == 0 || !(binary || rest.empty() || rest == "b")) return 0;
  int64_t bytes = 1;
  for (size_t i = 0; i < power; ++i) bytes *= binary ? 1024 : 1000;
  return bytes;
}

CLI::Validator size_in_bytes() {
  return check([](std::string& text) -> std::string {
    std::string_view rest = text;
    const auto number = take_number(rest);
    const int64_t unit =
        bytes_of(std::string(rest.substr(std::min(rest.find_first_not_of(' '), rest.size()))));
    if (!number || *number < 1 || unit == 0 || *number > INT64_MAX / unit)
      return "'" + text + "' is no size: a number from 1 on is expected, or one with a unit, such as 500MB";
    text = std::to_string(*number * unit);
    return "";
  });
}

int report(const ConvertedModel& made, bool json) {
  if (json) {
    Json all = {{"folder", made.folder}};
    if (!made.model_type.empty()) all["model_type"] = made.model_type;
    all.update({{"tensors", made.tensors}, {"bytes", made.bytes}, {"files", made.files}});
    print(all);
    return kOk;
  }
  const std::string type = made.model_type.empty() ? "" : made.model_type + ", ";
  print(printable(made.folder) + ": " + type + counted(made.tensors, "tensor") + ", " +
        size_text(made.bytes) + " in " + counted(static_cast<int64_t>(made.files.size()), "file") + "\n");
  return kOk;
}

// The layout is named, so that others can be added. Returns the option of Hugging Face's.
CLI::Option* add_export_layouts(CLI::App& command, ConvertArguments& given) {
  CLI::App* layouts = command.add_option_group("Layout");
  CLI::Option* hf =
      layouts->add_flag("--hf", given.hf, "A GPT-2 or Llama as from_pretrained of transformers reads it");
  layouts->add_flag("--safetensors", given.safetensors,
                    "Any model: whole tensors in model.safetensors, under the names they were saved by");
  layouts->require_option(1);
  return hf;
}

// Turns the value of --dtype into its name in safetensors.
CLI::Validator dtype_name() {
  return check([](std::string& text) -> std::string {
    for (const char* known : {"bf16", "f16", "f32"})
      if (text == known) {
        std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
        return "";
      }
    return "'" + text + "' is no dtype: bf16, f16 or f32 is expected";
  });
}

}  // namespace

void add_export(CLI::App& ckpt, Action& action) {
  CLI::App* command = ckpt.add_subcommand("export", "Write the weights as whole tensors, for other programs");
  auto given = std::make_shared<ConvertArguments>();
  CLI::Option* hf = add_export_layouts(*command, *given);
  command->add_option("CHECKPOINT", given->from, "Folder of a checkpoint or of a run")
      ->required()
      ->type_name("");
  command->add_option("FOLDER", given->to, "The folder to write; it must not exist")
      ->required()
      ->type_name("");
  command
      ->add_option("--config", given->config,
                   "JSON file with values of config.json, for --hf. They override the checkpoint's run value "
                   "'model_config'")
      ->check(no_folder())
      ->needs(hf)
      ->type_name("FILE");
  command
      ->add_option(
          "--base", given->out.base,
          "For a checkpoint of LoRA adapters alone, with --hf: the checkpoint or Hugging Face folder "
          "with the base weights. Without it: the one that the run was trained with")
      ->needs(hf)
      ->type_name("DIR");
  command
      ->add_option("--dtype", given->out.dtype,
                   "Cast floating-point weights to bf16, f16 or f32; without it they stay as saved")
      ->transform(dtype_name())
      ->type_name("DTYPE");
  command
      ->add_option("--max-file-bytes", given->out.max_file_bytes,
                   "Largest file of weights, for example 500MB; a larger tensor gets a file of its own")
      ->transform(size_in_bytes())
      ->type_name("BYTES")
      ->default_str("5GB");
  command->add_flag("--json", given->json, "Print JSON");
  command->footer("Optimizer state is left out, and so is the tokenizer, which no checkpoint holds.");
  command->callback([given, &action] {
    action = [given] {
      if (!given->config.empty()) given->out.config = read_config(given->config);
      given->out.progress = show_progress("exported");
      const auto write = given->hf ? export_hf : export_safetensors;
      return report(write(given->from, given->to, given->out), given->json);
    };
  });
}

void add_import(CLI::App& ckpt, Action& action) {
  CLI::App* command = ckpt.add_subcommand(
      "import", "Write the weights of a Hugging Face folder as the first checkpoint of a run");
  auto given = std::make_shared<ConvertArguments>();
  command
      ->add_flag("--hf", given->hf,
                 "Read the layout of Hugging Face's transformers. Required: there is no other")
      ->required();
  command->add_option("FOLDER", given->from, "A folder that save_pretrained wrote, with safetensors")
      ->required()
      ->type_name("");
  command->add_option("RUN", given->to, "The run's folder, without checkpoints so far")
      ->required()
      ->type_name("");
  command->add_option("--step", given->from_hf.step, "Step of the new checkpoint")
      ->transform(step_number())
      ->type_name("STEP")
      ->capture_default_str();
  command->add_flag("--json", given->json, "Print JSON");
  command->footer(
      "Weights only: an optimizer starts anew. config.json becomes the run value 'model_config'.");
  command->callback([given, &action] {
    action = [given] {
      given->from_hf.progress = show_progress("imported");
      return report(import_hf(given->from, given->to, given->from_hf), given->json);
    };
  });
}

}  // namespace fsdp::app
