// `fsdp ckpt diff`: what differs between two checkpoints.
#include <fsdp/checkpoint_files.h>

#include <array>
#include <cstdio>

#include "app/commands/ckpt.h"
#include "app/exit_codes.h"
#include "app/output.h"

namespace fsdp::app {

namespace {

struct DiffArguments {
  std::string first, second;
  bool json = false;
};

Json kind_json(const SavedTensorInfo& info) { return {{"dtype", info.dtype}, {"shape", info.shape}}; }

Json to_json(const CheckpointDifference& found) {
  Json mismatched = Json::array(), changed = Json::array();
  for (const TensorMismatch& one : found.mismatched)
    mismatched.push_back(
        {{"name", one.first.name}, {"first", kind_json(one.first)}, {"second", kind_json(one.second)}});
  for (const TensorDifference& one : found.changed) {
    Json entry = {{"name", one.name}, {"dtype", one.dtype}, {"elements", one.elements}, {"of", one.of}};
    if (one.is_number) entry["largest"] = one.largest;  // infinity becomes null
    changed.push_back(std::move(entry));
  }
  return {{"first", found.first},
          {"second", found.second},
          {"same", found.same_tensors()},
          {"equal", found.equal},
          {"only_in_first", found.only_in_first},
          {"only_in_second", found.only_in_second},
          {"mismatched", std::move(mismatched)},
          {"changed", std::move(changed)},
          {"run_keys", found.run_keys}};
}

std::string largest_text(const TensorDifference& one) {
  if (!one.is_number) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", one.largest);
  return text.data();
}

std::string as_text(const CheckpointDifference& found) {
  Table head;
  head.add({"first", found.first});
  head.add({"second", found.second});
  head.add({"equal", counted(found.equal, "tensor")});
  for (const std::string& key : found.run_keys) head.add({"run value", key + " differs"});
  std::string text = head.text();

  Table names({"tensor", "first", "second"});
  const auto kind = [](const SavedTensorInfo& info) { return info.dtype + " " + shape_text(info.shape); };
  for (const std::string& name : found.only_in_first) names.add({name, "is there", "-"});
  for (const std::string& name : found.only_in_second) names.add({name, "-", "is there"});
  for (const TensorMismatch& one : found.mismatched)
    names.add({one.first.name, kind(one.first), kind(one.second)});
  if (names.has_rows()) text += "\n" + names.text();

  Table values({"tensor", "dtype", "elements that differ", "of", "largest difference"}, {2, 3, 4});
  for (const TensorDifference& one : found.changed)
    values.add({one.name, one.dtype, count_text(one.elements), count_text(one.of), largest_text(one)});
  if (values.has_rows()) text += "\n" + values.text();
  return text + (found.same_tensors() ? "\nthe tensors are the same\n" : "\nthe tensors differ\n");
}

}  // namespace

void add_diff(CLI::App& ckpt, Action& action) {
  CLI::App* command = ckpt.add_subcommand(
      "diff", "Compare the tensors of two checkpoints, bit by bit. Exits 1 when they differ");
  auto given = std::make_shared<DiffArguments>();
  command->add_option("FIRST", given->first, "Folder of a checkpoint or of a run")->required()->type_name("");
  command->add_option("SECOND", given->second, "Folder of a checkpoint or of a run")
      ->required()
      ->type_name("");
  command->add_flag("--json", given->json, "Print JSON");
  command->footer("Run values that differ are listed, but do not count: the exit code is about tensors.");
  command->callback([given, &action] {
    action = [given] {
      const CheckpointDifference found =
          diff_checkpoints(given->first, given->second, show_progress("compared"));
      if (given->json)
        print(to_json(found));
      else
        print(as_text(found));
      return found.same_tensors() ? kOk : kDiffers;
    };
  });
}

}  // namespace fsdp::app
