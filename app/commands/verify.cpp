// `fsdp ckpt verify`: reads all of a checkpoint and compares it with its hashes.
#include <fsdp/checkpoint_files.h>

#include "app/commands/ckpt.h"
#include "app/exit_codes.h"
#include "app/output.h"

namespace fsdp::app {

namespace {

struct VerifyArguments {
  std::string path;
  bool json = false;
};

int verify(const VerifyArguments& given) {
  const VerifiedCheckpoint found = verify_checkpoint(given.path, show_progress("verified"));
  if (given.json) {
    print(Json{{"folder", found.folder},
               {"ok", true},
               {"files", found.files},
               {"tensors", found.tensors},
               {"bytes", found.bytes},
               {"hashed", found.hashed}});
    return kOk;
  }
  print(printable(found.folder) + ": ok. " + counted(found.tensors, "tensor") + " in " +
        counted(found.files, "file") + ", " + size_text(found.bytes) +
        (found.hashed ? ": every block has its hash\n"
                      : ". Such files have no hashes: damage inside a tensor would not be found\n"));
  return kOk;
}

}  // namespace

void add_verify(CLI::App& ckpt, Action& action) {
  CLI::App* command =
      ckpt.add_subcommand("verify", "Read every byte and compare it with its hash. Exits 3 for damage");
  auto given = std::make_shared<VerifyArguments>();
  command->add_option("CHECKPOINT", given->path, "Folder of a checkpoint or of a run")
      ->required()
      ->type_name("");
  command->add_flag("--json", given->json, "Print JSON");
  command->callback([given, &action] { action = [given] { return verify(*given); }; });
}

}  // namespace fsdp::app
