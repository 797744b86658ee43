// LibTorch exports ProcessGroupGloo but not gloo's headers. Those of any gloo will do, since this file only
// holds pointers to their types.
#include "comm/gloo/connect.h"

// The header is empty without it.
#define USE_C10D_GLOO  // NOLINT(readability-identifier-naming): LibTorch has named it
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/await.h"
#include "comm/gloo/endpoint.h"

namespace fsdp::detail {

using ::c10d::ProcessGroupGloo;

c10::intrusive_ptr<::c10d::Backend> connect_gloo(const GroupInfo& info) {
  const GlooEndpoint endpoint = choose_endpoint(info);
  auto options = ProcessGroupGloo::Options::create(info.options.timeout);
  options->threads = 1;  // they run gloo's collectives, of which we use none
  try {
    for (const auto& name : endpoint.interfaces)
      options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(name));
    if (endpoint.interfaces.empty())
      options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(endpoint.address));
    return c10::make_intrusive<ProcessGroupGloo>(info.store, info.rank, info.size, options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(name_of(info, info.rank) +
                          " could not connect to the other ranks of its group from " + endpoint.text() +
                          ": " + text.substr(0, text.find('\n')) +
                          ". The ranks' hosts must reach each other there on every port; GLOO_SOCKET_IFNAME "
                          "names another network interface");
  }
}

}  // namespace fsdp::detail
