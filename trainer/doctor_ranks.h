// The ranks of `fsdp doctor`: they meet, check collectives and links, and rank 0 reports.
#pragma once

#include <fsdp/comm.h>
#include <fsdp/world.h>

#include <vector>

#include "trainer/doctor/links.h"
#include "trainer/doctor/report.h"
#include "trainer/doctor/request.h"

namespace fsdp::train {

// One rank; rank 0 prints the report to stdout. Returns the exit code: 1 if there is a problem. Throws
// RendezvousError if the ranks do not meet, after it has printed what this machine has to do with that, and
// CommError if a collective fails.
int doctor_rank(const doctor::Request& request);

// LibTorch, and the device of this rank.
doctor::Findings check_torch(const World& world);

// Compares the result of each collective with what it must be. Every rank returns what it found itself.
// Collective.
doctor::Findings check_collectives(const World& world, Comm& comm);
// Rates by bytes of the full buffer. Collective.
std::vector<doctor::Timing> time_collectives(const World& world, Comm& comm, double megabytes);

// The ranks between which links are measured: the first of each host, or all of one host.
std::vector<int> ends_of_links(const World& world);
// Messages between all pairs of `ends`. Returns the links from this rank. Collective.
std::vector<doctor::Link> measure_links(const World& world, Comm& comm, const std::vector<int>& ends);
// How far the clocks of other hosts are from that of rank 0, on rank 0. Collective.
doctor::Findings check_clocks(const World& world, Comm& comm, const std::vector<int>& ends);

// The name of a rank's host, with its rank if several hosts have that name.
std::string end_name(const World& world, int rank);

}  // namespace fsdp::train
