// `fsdp ckpt`: looks into checkpoints, checks, compares and converts them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace fsdp::app {

// The action that the arguments ask for. Its result is the exit code.
using Action = std::function<int()>;

void add_ckpt(CLI::App& app, Action& action);

// Its subcommands.
void add_inspect(CLI::App& ckpt, Action& action);
void add_verify(CLI::App& ckpt, Action& action);
void add_diff(CLI::App& ckpt, Action& action);
void add_export(CLI::App& ckpt, Action& action);
void add_import(CLI::App& ckpt, Action& action);

}  // namespace fsdp::app
