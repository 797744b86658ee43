#include "app/commands/ckpt.h"

namespace fsdp::app {

void add_ckpt(CLI::App& app, Action& action) {
  CLI::App* ckpt = app.add_subcommand("ckpt", "Look into checkpoints, check, compare and convert them");
  ckpt->require_subcommand(1);
  ckpt->footer(
      "CHECKPOINT is the folder of a checkpoint (.../step-00000100), or of a run, meaning its latest.");
  add_inspect(*ckpt, action);
  add_verify(*ckpt, action);
  add_diff(*ckpt, action);
  add_export(*ckpt, action);
  add_import(*ckpt, action);
}

}  // namespace fsdp::app
