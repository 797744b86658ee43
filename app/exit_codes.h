// How the command ends, for scripts. docs/command.md lists them.
#pragma once

namespace fsdp::app {

inline constexpr int kOk = 0;
inline constexpr int kDiffers = 1;     // `ckpt diff`: the tensors are not the same
inline constexpr int kFailed = 1;      // `train`: LibTorch or the library refused a call
inline constexpr int kUsage = 2;       // arguments, a configuration or data that make no sense
inline constexpr int kCheckpoint = 3;  // a checkpoint is damaged, incomplete or in another format
inline constexpr int kRendezvous = 4;  // ranks could not form a world
inline constexpr int kPeerLost = 5;    // another rank failed
inline constexpr int kNumeric = 6;     // losses or gradients are not finite
inline constexpr int kStorage = 7;     // a file or folder cannot be read or written
inline constexpr int kDefect = 70;     // an internal error
inline constexpr int kRequeue = 75;    // `train`: asked to end by a signal, saved; to be started again

}  // namespace fsdp::app
