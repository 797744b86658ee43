// Fully Sharded Data Parallel training for LibTorch: everything a program needs.
#pragma once

#include <fsdp/background_saver.h>
#include <fsdp/capture.h>
#include <fsdp/checkpoint.h>
#include <fsdp/checkpoint_files.h>
#include <fsdp/codec.h>
#include <fsdp/comm.h>
#include <fsdp/error.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/memory_error.h>
#include <fsdp/on_meta.h>
#include <fsdp/optim.h>
#include <fsdp/optimizer_format.h>
#include <fsdp/recompute.h>
#include <fsdp/recomputed.h>
#include <fsdp/run_main.h>
#include <fsdp/sampler.h>
#include <fsdp/script.h>
#include <fsdp/sharded.h>
#include <fsdp/state_dict.h>
#include <fsdp/version.h>
#include <fsdp/world.h>
