// `fsdp ckpt inspect`: what a checkpoint holds.
#include <fsdp/checkpoint_files.h>

#include "app/commands/ckpt.h"
#include "app/exit_codes.h"
#include "app/output.h"

namespace fsdp::app {

namespace {

struct InspectArguments {
  std::string path;
  bool json = false;
};

Json to_json(const CheckpointInfo& info) {
  Json tensors = Json::array(), files = Json::array();
  for (const SavedTensorInfo& one : info.tensors)
    tensors.push_back({{"name", one.name},
                       {"dtype", one.dtype},
                       {"shape", one.shape},
                       {"bytes", one.bytes},
                       {"boxes", one.boxes}});
  for (const SavedFileInfo& one : info.files) files.push_back({{"name", one.name}, {"bytes", one.bytes}});
  return {{"folder", info.folder},
          {"id", info.id},
          {"step", info.step},
          {"world", info.world},
          {"writer", info.writer},
          {"tensor_bytes", info.tensor_bytes},
          {"file_bytes", info.file_bytes},
          {"tensors", std::move(tensors)},
          {"aliases", info.aliases},
          {"files", std::move(files)},
          {"run", Json::parse(info.run)}};
}

std::string as_text(const CheckpointInfo& info) {
  Table head;
  head.add({"checkpoint", info.folder});
  head.add({"step", std::to_string(info.step)});
  head.add({"saved by", (info.world > 0 ? counted(info.world, "rank") + ", " : "") + info.writer});
  const auto size = [](size_t count, int64_t bytes) {
    return std::to_string(count) + ", " + size_text(bytes);
  };
  head.add({"tensors", size(info.tensors.size(), info.tensor_bytes)});
  head.add({"files", size(info.files.size(), info.file_bytes)});

  Table tensors({"tensor", "dtype", "shape", "bytes", "boxes"}, {3, 4});
  for (const SavedTensorInfo& one : info.tensors)
    tensors.add(
        {one.name, one.dtype, shape_text(one.shape), count_text(one.bytes), std::to_string(one.boxes)});
  Table aliases({"other name", "of the tensor"});
  for (const auto& [alias, name] : info.aliases) aliases.add({alias, name});

  Table files({"file", "bytes"}, {1});
  for (const SavedFileInfo& one : info.files) files.add({one.name, count_text(one.bytes)});

  Table values({"run value", ""});
  const Json run = Json::parse(info.run);
  for (const auto& [key, value] : run.items()) {
    std::string text = value.dump();
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    values.add({key, std::move(text)});
  }
  std::string text = head.text();
  for (const Table& table : {tensors, aliases, files, values})
    if (table.has_rows()) text += "\n" + table.text();
  return text;
}

}  // namespace

void add_inspect(CLI::App& ckpt, Action& action) {
  CLI::App* command = ckpt.add_subcommand(
      "inspect", "Show step, ranks, tensors, files and run values. Reads the manifest only");
  auto given = std::make_shared<InspectArguments>();
  command->add_option("CHECKPOINT", given->path, "Folder of a checkpoint or of a run")
      ->required()
      ->type_name("");
  command->add_flag("--json", given->json, "Print JSON");
  command->callback([given, &action] {
    action = [given] {
      const CheckpointInfo info = inspect_checkpoint(given->path);
      if (given->json)
        print(to_json(info));
      else
        print(as_text(info));
      return kOk;
    };
  });
}

}  // namespace fsdp::app
