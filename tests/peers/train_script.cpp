// train_script FOLDER: trains what write_scripts.py wrote, sharded over ranks, and compares with PyTorch.
#include <fsdp/fsdp.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Dict = c10::impl::GenericDict;

// Relative to the largest value. Both sides are fp32; PyTorch compiles the scripts, whose kernels may add in
// another order, and ten steps with momentum carry that on.
constexpr double kTolerance = 1e-5;

struct Drift {
  double smallest = HUGE_VAL;
  double largest = 0;
  std::string where = "nothing";

  void add(const std::string& name, const torch::Tensor& ours, const torch::Tensor& theirs) {
    TORCH_CHECK(ours.sizes() == theirs.sizes(), name, ": ", ours.sizes(), " and ", theirs.sizes());
    const auto wanted = theirs.to(torch::kDouble);
    const auto scale = std::max(wanted.abs().max().item<double>(), 1e-30);
    const double found = (ours.to(torch::kDouble) - wanted).abs().max().item<double>() / scale;
    smallest = std::min(smallest, found);
    if (found <= largest) return;
    largest = std::isnan(found) ? HUGE_VAL : found;
    where = name;
  }
};

Dict read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return torch::pickle_load({std::istreambuf_iterator<char>(file), {}}).toGenericDict();
}

torch::Tensor part(const Dict& run, const char* name, std::initializer_list<int64_t> indices) {
  auto tensor = run.at(name).toTensor();
  for (const int64_t index : indices) tensor = tensor[index];
  return tensor;
}

using Model = fsdp::Sharded<torch::jit::Module>;

void train(Model& model, const Dict& run, int64_t rank) {
  torch::optim::SGD optimizer(model.parameters(),
                              torch::optim::SGDOptions(run.at("lr").toDouble()).momentum(0.9));
  for (int64_t step = 0; step < run.at("x").toTensor().size(0); ++step) {
    model(part(run, "x", {step, rank}), part(run, "y", {step, rank})).toTensor().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

// Adds what `items` of the script are to `drift`, against `wanted` by name; `of` picks from what is wanted.
template <class Items, class Fn>
void compare(Drift& drift, const Items& items, const Dict& wanted, Fn of) {
  std::set<std::string> seen;
  for (const auto& item : items) {
    if (!wanted.contains(item.name)) continue;  // another name of a tied one
    seen.insert(item.name);
    drift.add(item.name, item.value.detach(), of(wanted.at(item.name).toTensor()));
  }
  TORCH_CHECK(seen.size() == wanted.size(), seen.size(), " of ", wanted.size(), " names are in the script");
}

// How far training moved the parameter that it moved least: one that stays where it was must not pass.
double moved(const torch::jit::Module& untrained, const Dict& parameters) {
  Drift way;
  compare(way, untrained.named_parameters(), parameters, [](const auto& whole) { return whole; });
  return way.smallest;
}

void run_case(fsdp::World& world, const fs::path& script, const Dict& run) {
  at::set_num_threads(1);
  const int64_t rank = world.rank();
  const double way = moved(torch::jit::load(script), run.at("parameters").toGenericDict());
  auto model = fsdp::fully_shard(world, torch::jit::load(script),
                                 {.wrap = fsdp::by_type_name({run.at("unit").toStringRef()})});
  const auto units = static_cast<int64_t>(model.unit_counts().size());
  TORCH_CHECK(units == run.at("units").toInt(), units, " units instead of ", run.at("units").toInt());
  train(model, run, rank);

  Drift parameters, rest;
  {
    const auto whole = model.full_params();
    compare(parameters, model.module().named_parameters(), run.at("parameters").toGenericDict(),
            [](const auto& value) { return value; });
  }
  {
    const torch::NoGradGuard no_grad;
    model.eval();
    const auto loss = model(part(run, "held_x", {rank}), part(run, "held_y", {rank})).toTensor();
    rest.add("the loss in eval mode", loss, part(run, "held_loss", {rank}));
  }
  compare(rest, model.module().named_buffers(), run.at("buffers").toGenericDict(),
          [&](const auto& of_ranks) { return of_ranks[rank]; });
  if (rank == 0) {
    std::printf(
        "%-16s  %ld units; parameters move by %.0e or more; largest drift of a parameter %.1e (%s), of "
        "buffers and loss %.1e "
        "(%s)\n",
        script.stem().c_str(), units, way, parameters.largest, parameters.where.c_str(), rest.largest,
        rest.where.c_str());
    std::fflush(stdout);
  }
  TORCH_CHECK(way > 10 * kTolerance, "a parameter of PyTorch's hardly moved: ", way);
  for (const Drift& drift : {parameters, rest})
    TORCH_CHECK(drift.largest <= kTolerance, "rank ", rank, ": ", drift.where, " is ", drift.largest,
                " away from PyTorch's");
}

std::vector<fs::path> scripts_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (!entry.path().stem().has_extension()) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  TORCH_CHECK(!found.empty(), "no scripts in ", folder.string());
  return found;
}

bool passes(const fs::path& script) try {
  const auto run_path = fs::path(script).replace_extension(".run.pt");
  const auto ranks = static_cast<int>(read(run_path).at("x").toTensor().size(1));
  fsdp::run_local(ranks, [&](fsdp::World& world) { run_case(world, script, read(run_path)); },
                  {.device = c10::Device(c10::kCPU)});
  return true;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s: %s\n", script.stem().c_str(), error.what());
  return false;
}

}  // namespace

int main(int argc, char** argv) try {
  TORCH_CHECK(argc == 2, "usage: train_script FOLDER");
  int failed = 0;
  for (const auto& script : scripts_in(argv[1])) failed += passes(script) ? 0 : 1;
  return failed == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
