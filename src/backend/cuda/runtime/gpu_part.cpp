#include "backend/cuda/runtime/gpu_part.h"

#include <optional>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/driver.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

struct Calls {
  decltype(cuDeviceGetDevResource)* resource;
  decltype(cuDevSmResourceSplitByCount)* split;
  decltype(cuDevResourceGenerateDesc)* describe;
  decltype(cuGreenCtxCreate)* create;
  decltype(cuGreenCtxDestroy)* destroy;
  decltype(cuGreenCtxStreamCreate)* stream;
  bool there() const {
    return resource != nullptr && split != nullptr && describe != nullptr && create != nullptr &&
           destroy != nullptr && stream != nullptr;
  }
};

const Calls& calls() {
  constexpr unsigned kSince = 12050;
  static const Calls kCalls = {
      driver_function<decltype(cuDeviceGetDevResource)>("cuDeviceGetDevResource", kSince),
      driver_function<decltype(cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount", kSince),
      driver_function<decltype(cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc", kSince),
      driver_function<decltype(cuGreenCtxCreate)>("cuGreenCtxCreate", kSince),
      driver_function<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy", kSince),
      driver_function<decltype(cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate", kSince)};
  return kCalls;
}

// The multiprocessors of a part are a multiple of it on every device.
constexpr unsigned kUnit = 8;

// The largest equal parts. Those that allow clusters of 16 CTAs are tried first.
std::optional<CUdevResource> part_of(CUdevResource& device, unsigned index, unsigned count) {
  for (const unsigned flags : {unsigned{CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE}, 0u}) {
    for (unsigned size = device.sm.smCount / count / kUnit * kUnit; size >= kUnit; size -= kUnit) {
      std::vector<CUdevResource> parts(count);
      unsigned made = count;
      if (calls().split(parts.data(), &made, &device, nullptr, flags, size) == CUDA_SUCCESS && made == count)
        return parts[index];
    }
  }
  return std::nullopt;
}

}  // namespace

GpuPart::~GpuPart() {
  if (context_ != nullptr && !device_is_lost()) calls().destroy(context_);
}

Status GpuPart::open(int index, int count) {
  ASSIGN_OR_RETURN(const int device, current_device());
  RETURN_IF_ERROR(
      check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device), "device"));
  if (count == 1) return {};
  if (!calls().there())
    return error(StatusCode::kUnsupported,
                 "--tp: ranks that share cuda:{} need a driver for CUDA 12.5 or newer; name a GPU for each",
                 device);
  CUdevResource all{};
  RETURN_IF_ERROR(check_driver(calls().resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "multiprocessors"));
  std::optional<CUdevResource> part =
      part_of(all, static_cast<unsigned>(index), static_cast<unsigned>(count));
  if (!part)
    return error(StatusCode::kUnsupported,
                 "--tp: cuda:{} cannot be cut into {} parts for as many ranks: it has {} multiprocessors",
                 device, count, multiprocessors_);
  CUdevResourceDesc description = nullptr;
  RETURN_IF_ERROR(check_driver(calls().describe(&description, &*part, 1), "multiprocessors"));
  RETURN_IF_ERROR(check_driver(calls().create(&context_, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
                               "multiprocessors"));
  multiprocessors_ = static_cast<int>(part->sm.smCount);
  return {};
}

Result<cudaStream_t> GpuPart::make_stream() const {
  cudaStream_t stream = nullptr;
  if (context_ == nullptr) {
    RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"));
  } else {
    RETURN_IF_ERROR(
        check_driver(calls().stream(&stream, context_, CU_STREAM_NON_BLOCKING, /*priority=*/0), "stream"));
  }
  return stream;
}

}  // namespace moesaic::cuda
