#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "models/cuda/launch.h"

namespace fsdp::models::kernels {
namespace {

constexpr int kThreads = 256;

__device__ float wide(float value) { return value; }
__device__ float wide(__half value) { return __half2float(value); }
__device__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ T narrow(float value);
template <>
__device__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Rounds as a separate operator would: to T, and without fusing the multiplication into the next addition.
template <class T>
__device__ float product(float a, float b) {
  return wide(narrow<T>(__fmul_rn(a, b)));
}
template <class T>
__device__ T sum(float a, float b) {
  return narrow<T>(__fadd_rn(a, b));
}

// The elements that one thread reads and writes at once.
template <class T>
struct alignas(kBytesAtOnce) Pack {
  static constexpr int kCount = kBytesAtOnce / sizeof(T);
  T values[kCount];
};

template <class T>
__device__ Pack<T> read(const void* data, int64_t first) {
  return *reinterpret_cast<const Pack<T>*>(static_cast<const T*>(data) + first);
}
template <class T>
__device__ void write(void* data, int64_t first, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(static_cast<T*>(data) + first) = pack;
}

template <class T>
__global__ void rotate(Rotation r, uint32_t packs) {
  constexpr int kCount = Pack<T>::kCount;
  uint32_t rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest >= packs) return;
  const auto take = [&](int64_t size) {
    const uint32_t index = rest % static_cast<uint32_t>(size);
    rest /= static_cast<uint32_t>(size);
    return static_cast<int64_t>(index);
  };
  const int64_t half = r.head_dim / 2;
  const int64_t at = take(half / kCount) * kCount, head = take(r.heads), time = take(r.time), batch = rest;
  const auto place = [&](const Strides& s) { return batch * s.batch + head * s.head + time * s.time + at; };
  const int64_t in = place(r.in_strides), out = place(r.out_strides), angle = time * r.head_dim + at;
  const Pack<T> low = read<T>(r.in, in), high = read<T>(r.in, in + half);
  const Pack<T> cos_low = read<T>(r.cos, angle), cos_high = read<T>(r.cos, angle + half);
  const Pack<T> sin_low = read<T>(r.sin, angle), sin_high = read<T>(r.sin, angle + half);
  Pack<T> new_low, new_high;
  for (int i = 0; i < kCount; ++i) {
    const float a = wide(low.values[i]), b = wide(high.values[i]);
    const float sl = wide(sin_low.values[i]), sh = wide(sin_high.values[i]);
    const float for_low = r.back ? product<T>(b, sh) : -product<T>(b, sl);
    const float for_high = r.back ? -product<T>(a, sl) : product<T>(a, sh);
    new_low.values[i] = sum<T>(product<T>(a, wide(cos_low.values[i])), for_low);
    new_high.values[i] = sum<T>(product<T>(b, wide(cos_high.values[i])), for_high);
  }
  write(r.out, out, new_low);
  write(r.out, out + half, new_high);
}

template <class T>
__global__ void gated_silu(const void* gate, const void* up, void* out, int64_t packs) {
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const int64_t first = pack * Pack<T>::kCount;
  const Pack<T> gates = read<T>(gate, first), ups = read<T>(up, first);
  Pack<T> result;
  for (int i = 0; i < Pack<T>::kCount; ++i) {
    const float x = wide(gates.values[i]);
    const float silu = wide(narrow<T>(x / (1.0f + expf(-x))));
    result.values[i] = narrow<T>(__fmul_rn(silu, wide(ups.values[i])));
  }
  write(out, first, result);
}

template <class T>
__global__ void gated_silu_backward(const void* grad, const void* gate, const void* up, void* of_gate,
                                    void* of_up, int64_t packs) {
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const int64_t first = pack * Pack<T>::kCount;
  const Pack<T> grads = read<T>(grad, first), gates = read<T>(gate, first), ups = read<T>(up, first);
  Pack<T> to_gate, to_up;
  for (int i = 0; i < Pack<T>::kCount; ++i) {
    const float g = wide(grads.values[i]), x = wide(gates.values[i]);
    const float silu = wide(narrow<T>(x / (1.0f + expf(-x))));
    const float of_silu = product<T>(g, wide(ups.values[i]));
    const float slope = 1.0f / (1.0f + expf(-x));
    to_up.values[i] = narrow<T>(__fmul_rn(g, silu));
    to_gate.values[i] = narrow<T>(of_silu * slope * (1.0f + x * (1.0f - slope)));
  }
  write(of_gate, first, to_gate);
  write(of_up, first, to_up);
}

uint32_t blocks(int64_t packs) { return static_cast<uint32_t>((packs + kThreads - 1) / kThreads); }

template <class Launch>
cudaError_t of_type(Type type, Launch launch) {
  if (type == Type::fp32) launch(float{});
  if (type == Type::fp16) launch(__half{});
  if (type == Type::bf16) launch(__nv_bfloat16{});
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_rotate(Type type, const Rotation& r, cudaStream_t stream) {
  return of_type(type, [&](auto value) {
    using T = decltype(value);
    const int64_t packs = r.batch * r.heads * r.time * r.head_dim / 2 / Pack<T>::kCount;
    rotate<T><<<blocks(packs), kThreads, 0, stream>>>(r, static_cast<uint32_t>(packs));
  });
}

cudaError_t launch_gated_silu(Type type, const void* gate, const void* up, void* out, int64_t elements,
                              cudaStream_t stream) {
  return of_type(type, [&](auto value) {
    using T = decltype(value);
    const int64_t packs = elements / Pack<T>::kCount;
    gated_silu<T><<<blocks(packs), kThreads, 0, stream>>>(gate, up, out, packs);
  });
}

cudaError_t launch_gated_silu_backward(Type type, const void* grad, const void* gate, const void* up,
                                       void* of_gate, void* of_up, int64_t elements, cudaStream_t stream) {
  return of_type(type, [&](auto value) {
    using T = decltype(value);
    const int64_t packs = elements / Pack<T>::kCount;
    gated_silu_backward<T><<<blocks(packs), kThreads, 0, stream>>>(grad, gate, up, of_gate, of_up, packs);
  });
}

}  // namespace fsdp::models::kernels
