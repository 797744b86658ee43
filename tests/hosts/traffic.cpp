// Collectives again and again, for the tests of several hosts.
//
// hosts_traffic OP BYTES ROUNDS, under a launcher. A rank prints its pid when the group is made, and at the
// end a digest of what it has received.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

class Traffic {
 public:
  Traffic(fsdp::Comm comm, int64_t bytes)
      : comm_(std::move(comm)),
        whole_(at::arange(bytes / 4, at::TensorOptions().dtype(at::kFloat)).remainder(251) + comm_.rank()),
        part_(at::empty({bytes / 4 / comm_.size()})) {}

  void run(const std::string& op) {
    if (op == "all_gather") {
      part_.copy_(whole_.narrow(0, comm_.rank() * part_.numel(), part_.numel()));
      comm_.all_gather(whole_, part_, "traffic").wait();
    } else if (op == "reduce_scatter") {
      comm_.reduce_scatter(part_, whole_, fsdp::ReduceOp::average, 1.0, "traffic").wait();
    } else {
      TORCH_CHECK(op == "all_reduce", "unknown operation ", op);
      comm_.all_reduce(whole_, fsdp::ReduceOp::average, "traffic").wait();
    }
  }

  double digest() const { return (whole_.sum(at::kDouble) + part_.sum(at::kDouble)).item<double>(); }

 private:
  fsdp::Comm comm_;
  at::Tensor whole_, part_;
};

void run(fsdp::World& world, const std::vector<std::string>& arguments) {
  at::set_num_threads(1);
  auto comm = fsdp::Comm::create(world);
  Traffic traffic(comm, std::stoll(arguments.at(1)));
  comm.barrier();
  std::printf("rank %d pid %d %s\n", world.rank(), static_cast<int>(::getpid()), comm.backend_name());
  std::fflush(stdout);
  for (int64_t round = 0; round < std::stoll(arguments.at(2)); ++round) traffic.run(arguments.at(0));
  std::printf("rank %d digest %.17g\n", world.rank(), traffic.digest());
}

}  // namespace

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, run); }
