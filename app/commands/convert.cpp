// `fsdp ckpt export` and `fsdp ckpt import`: weights from and to the layout of Hugging Face.
#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include <cerrno>
#include <fstream>
#include <iterator>

#include "app/commands/ckpt.h"
#include "app/exit_codes.h"
#include "app/output.h"

namespace fsdp::app {

namespace {

struct ConvertArguments {
  std::string from, to;
  std::string config;  // path
  bool hf = false;
  bool json = false;
  HfExportOptions to_hf;
  HfImportOptions from_hf;
};

std::string whole_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || file.bad()) throw IoError("read", path, errno);
  return text;
}

int report(const ConvertedModel& made, bool json) {
  if (json) {
    print(Json{{"folder", made.folder},
               {"model_type", made.model_type},
               {"tensors", made.tensors},
               {"bytes", made.bytes},
               {"files", made.files}});
    return kOk;
  }
  print(printable(made.folder) + ": " + made.model_type + ", " + counted(made.tensors, "tensor") + ", " +
        size_text(made.bytes) + " in " + counted(static_cast<int64_t>(made.files.size()), "file") + "\n");
  return kOk;
}

// A check that --help does not mention.
CLI::Validator quiet(CLI::Validator check) { return check.description(""); }

// The layout is named, so that others can be added.
void add_layout(CLI::App& command, bool& hf) {
  command
      .add_flag("--hf", hf,
                "The layout of Hugging Face's transformers. It is the only one, and must be named")
      ->required();
}

}  // namespace

void add_export(CLI::App& ckpt, Action& action) {
  CLI::App* command = ckpt.add_subcommand(
      "export", "Write the weights of a GPT-2 or Llama as from_pretrained of transformers reads them");
  auto given = std::make_shared<ConvertArguments>();
  add_layout(*command, given->hf);
  command->add_option("CHECKPOINT", given->from, "Folder of a checkpoint or of a run")
      ->required()
      ->type_name("");
  command->add_option("FOLDER", given->to, "The folder to write; it must not exist")
      ->required()
      ->type_name("");
  command
      ->add_option("--config", given->config,
                   "JSON file with values of config.json. They win over the checkpoint's run value "
                   "'model_config'")
      ->type_name("FILE");
  command
      ->add_option("--max-file-bytes", given->to_hf.max_file_bytes,
                   "Weights of one file, for example 500MB; a larger tensor gets a file of its own")
      ->transform(quiet(CLI::AsSizeValue(true)))
      ->check(quiet(CLI::PositiveNumber))
      ->type_name("BYTES")
      ->default_str("5GB");
  command->add_flag("--json", given->json, "Print JSON");
  command->footer("Optimizer state is left out, and so is the tokenizer, which no checkpoint holds.");
  command->callback([given, &action] {
    action = [given] {
      if (!given->config.empty()) given->to_hf.config = whole_file(given->config);
      given->to_hf.progress = show_progress("exported");
      return report(export_hf(given->from, given->to, given->to_hf), given->json);
    };
  });
}

void add_import(CLI::App& ckpt, Action& action) {
  CLI::App* command = ckpt.add_subcommand(
      "import", "Write the weights of a Hugging Face folder as the first checkpoint of a run");
  auto given = std::make_shared<ConvertArguments>();
  add_layout(*command, given->hf);
  command->add_option("FOLDER", given->from, "A folder that save_pretrained wrote, with safetensors")
      ->required()
      ->type_name("");
  command->add_option("RUN", given->to, "The run's folder, without checkpoints so far")
      ->required()
      ->type_name("");
  command->add_option("--step", given->from_hf.step, "Step of the new checkpoint")
      ->check(quiet(CLI::NonNegativeNumber))
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
