// A device that is the host, as much as the backend needs of CUDA's runtime: one H200, whose memory is the
// host's and whose work is done when it is asked for. Memory comes poisoned, so that what nobody wrote is
// seen.
#include <cuda.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/testing/host_simulator/captures.h"

namespace {
// Ranks load in threads of their own.
std::mutex& memory_lock() {
  static std::mutex lock;
  return lock;
}
std::map<const std::byte*, size_t>& allocations() {
  static std::map<const std::byte*, size_t> all;
  return all;
}

// Copies from pageable memory: cudaMemcpy() has read its source when it returns, and has not written yet.
struct LateCopy {
  void* to;
  std::vector<std::byte> bytes;
};
std::vector<LateCopy>& late_copies() {
  static std::vector<LateCopy> all;
  return all;
}
thread_local cudaError_t last_error = cudaSuccess;
void end_default_stream() {
  const std::scoped_lock lock(memory_lock());
  for (const LateCopy& copy : std::exchange(late_copies(), {}))
    std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
}
}  // namespace

namespace moesaic::cuda::on_host {
Captures& captures() {
  static Captures all;
  return all;
}
}  // namespace moesaic::cuda::on_host
using moesaic::cuda::on_host::captures;

extern "C" {
cudaError_t cudaMalloc(void** p, size_t bytes) {
  // As CUDA has it, this would end a capture.
  if (captures().id > 0 && captures().mode != cudaStreamCaptureModeRelaxed)
    return cudaErrorStreamCaptureUnsupported;
  if (!captures().may_allocate()) return *p = nullptr, cudaErrorMemoryAllocation;
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*p, 0x7F, bytes);
  const std::scoped_lock lock(memory_lock());
  allocations()[static_cast<std::byte*>(*p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  end_default_stream();
  const std::scoped_lock lock(memory_lock());
  allocations().erase(static_cast<std::byte*>(p));
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  if (!captures().may_allocate()) return *p = nullptr, last_error = cudaErrorMemoryAllocation;
  return *p = std::malloc(bytes), cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return std::free(p), cudaSuccess; }
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  end_default_stream();
  return std::memset(p, value, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  return std::memset(p, value, bytes), cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  end_default_stream();
  if (kind != cudaMemcpyHostToDevice) return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  const auto* begin = static_cast<const std::byte*>(from);
  const std::scoped_lock lock(memory_lock());
  late_copies().push_back({to, {begin, begin + bytes}});
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (!captures().may_copy()) return cudaErrorMemoryAllocation;
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t) {
  cudaError_t code = cudaSuccess;
  for (size_t row = 0; row < height && code == cudaSuccess; ++row)
    code = cudaMemcpyAsync(static_cast<std::byte*>(to) + row * to_pitch,
                           static_cast<const std::byte*>(from) + row * from_pitch, width, kind, nullptr);
  return code;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) {
  return captures().refuses_locks ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = *greatest = 0, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = reinterpret_cast<cudaStream_t>(1), cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = reinterpret_cast<cudaStream_t>(1), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 1, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) end_default_stream();
  return cudaSuccess;
}
// As CUDA has it, this fails while any stream of the process is captured, and ends that capture.
cudaError_t cudaDeviceSynchronize() {
  ADD_FAILURE() << "a wait for the whole device";
  return cudaErrorStreamCaptureUnsupported;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return std::swap(*mode, captures().mode), cudaSuccess;
}
// A stream's handle is its id.
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  if (captures().id > 0) return cudaErrorStreamCaptureUnsupported;
  return *id = reinterpret_cast<uintptr_t>(stream), cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     size_t*) {
  const unsigned long long capture = captures().id;
  *status = capture > 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *id = capture, *graph = reinterpret_cast<cudaGraph_t>(capture);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = captures().id > 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (captures().no_begin) return cudaErrorStreamCaptureUnsupported;
  if (captures().id > 0) return cudaErrorIllegalState;
  static unsigned long long next = 1 << 20;
  return captures().id = next++, cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const unsigned long long id = std::exchange(captures().id, 0);
  if (captures().no_end) return *graph = nullptr, cudaErrorStreamCaptureInvalidated;
  return *graph = reinterpret_cast<cudaGraph_t>(id), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
  if (captures().failing_instantiations > 0)
    return --captures().failing_instantiations, cudaErrorMemoryAllocation;
  ++captures().executables;
  return *executable = reinterpret_cast<cudaGraphExec_t>(1), cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return --captures().executables, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return ++captures().launches, cudaSuccess; }
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* p, cudaHostFn_t destroy, unsigned,
                                 unsigned) {
  captures().made.emplace_back(destroy, p);
  return *object = reinterpret_cast<cudaUserObject_t>(captures().made.size()), cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned) {
  captures().of_graph[reinterpret_cast<uintptr_t>(graph)].push_back(reinterpret_cast<uintptr_t>(object) - 1);
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return captures().hangs ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* reaches, int, int) { return *reaches = 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* left, size_t* total) { return *left = *total = 0, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  const char* const major = std::getenv("MOESAIC_SIMULATED_MAJOR");
  p->major = major == nullptr ? 9 : std::atoi(major), p->multiProcessorCount = 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 132, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaFuncGetName(const char** name, const void*) { return *name = "", cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) { return *a = {}, cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr, *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  const auto* const byte = static_cast<const std::byte*>(p);
  const auto after = allocations().upper_bound(byte);
  const bool here =
      after != allocations().begin() && byte < std::prev(after)->first + std::prev(after)->second;
  a->type = here ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, a->device = 0;
  return cudaSuccess;
}
}
