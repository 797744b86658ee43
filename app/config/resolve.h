// One configuration from a YAML file, flags and environment: merged, checked, and with what it took
// explained.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/config/settings.h"

namespace fsdp::config {

// The request of the command line, as typed. resolve() checks it.
struct Request {
  std::optional<std::string> config = {};  // path; unset: ./config.yaml if it exists, else the file built in
  std::optional<std::string> stage = {}, mode = {}, model_config = {}, fsdp_config = {};
  std::optional<std::string> num_nodes = {}, devices = {}, precision = {};
  std::vector<std::string> sets = {};  // "training.batch_size=4"
  // config.yaml of the run that goes on: its values hold where file and flags say nothing. Without `config`
  // it stands for the file.
  std::optional<std::string> run_config = {};
  // Defaults of a C++ caller, written like `sets`. The file beats them.
  std::vector<std::string> defaults = {};
  bool own_model = false;   // the caller brings the model: the file need not name one
  bool will_start = false;  // also refuse what this machine lacks: files, GPUs
};

struct Machine {
  int gpus = 0;
  int cores = 1;
  // A launcher (torchrun, srun, mpirun) has started the ranks: all of them, and those of this machine; 0:
  // none has, or it does not say.
  int world_size = 0;
  int local_size = 0;
};

// Variables by name. Those that begin with FSDP_SET_ are read: FSDP_SET_training__batch_size=4.
using Environment = std::map<std::string, std::string>;

// This process's variables that begin with FSDP_SET_.
Environment process_environment();

struct Resolution {
  Settings settings;               // complete only if there are no problems
  std::vector<std::string> notes;  // what won over what, and what has no effect: a line each
  std::vector<std::string>
      problems;                     // all that is wrong, a line each: "config.yaml:12: key: found, expected"
  std::vector<std::string> stages;  // of the file, in its order
};

// Reads the file and merges. Later wins: default, C++ caller's default, the run that goes on, top-level
// section, stage, preset, environment, flag. Throws nothing for bad input: see Resolution::problems.
Resolution resolve(const Request& request, const Machine& machine, const Environment& environment = {});

}  // namespace fsdp::config
