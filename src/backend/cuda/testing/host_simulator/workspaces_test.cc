// Who shares scratch memory with whom: ops/workspaces.h.
#include "backend/cuda/ops/workspaces.h"

#include <gtest/gtest.h>

#include <set>

#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/testing/host_simulator/captures.h"

namespace moesaic::cuda {
namespace {

using on_host::captures;

cudaStream_t stream(uintptr_t id) { return reinterpret_cast<cudaStream_t>(id); }

class WorkspacesTest : public testing::Test {
 protected:
  void TearDown() override {
    captures().id = 0;
    while (!captures().of_graph.empty()) captures().destroy(captures().of_graph.begin()->first);
  }
  std::shared_ptr<Workspaces::Block> block(uintptr_t of, size_t bytes = 1000) {
    return all_->get(0, stream(of), bytes).value();
  }
  void* get(uintptr_t of, size_t bytes = 1000) { return block(of, bytes)->memory.as<void>(); }
  std::shared_ptr<Workspaces> all_ = Workspaces::shared();
  unsigned long long first_ = next_, second_ = next_ + 1;  // captures, whose ids CUDA never uses again
  static inline unsigned long long next_ = 1;
  WorkspacesTest() { next_ += 2; }
};

TEST_F(WorkspacesTest, AStreamKeepsItsOwn) {
  void* const one = get(1);
  EXPECT_EQ(get(1), one);
  EXPECT_EQ(get(1, 10), one);
  EXPECT_NE(get(2), one);
  EXPECT_NE(get(1, 5000), nullptr);
  EXPECT_EQ(get(1, 10), get(1, 5000));
}

TEST_F(WorkspacesTest, WhatIsCapturedHasItsOwn) {
  void* const eager = get(1);
  captures().id = first_;
  void* const captured = get(1);
  EXPECT_NE(captured, eager);
  EXPECT_EQ(get(1), captured);  // the next layer
  void* const branch = get(2);  // a stream that joined the capture
  EXPECT_NE(branch, captured);
  captures().id = second_;
  const std::set<void*> others = {eager, captured, branch};
  EXPECT_FALSE(others.contains(get(1)));
  EXPECT_FALSE(others.contains(get(1, 100000)));
  captures().id = 0;
  EXPECT_EQ(get(1), eager);
}

TEST_F(WorkspacesTest, AGraphThatIsGoneLeavesItsBlockToAnother) {
  captures().id = first_;
  get(1, 1 << 20);  // which frees what other tests have left
  void* const small = get(2, 33333);
  void* const large = get(2, 77777);
  EXPECT_NE(large, small);
  captures().id = 0;
  all_.reset();  // the graph may live longer
  all_ = Workspaces::shared();
  captures().id = second_;
  void* const beside = get(2, 33333);
  EXPECT_NE(beside, small);
  EXPECT_NE(beside, large);
  captures().destroy(first_);
  EXPECT_EQ(get(3, 33333), small);
  EXPECT_EQ(get(4, 77777), large);
}

TEST_F(WorkspacesTest, StreamsThatAreNotUsedAnyMoreLeaveTheirs) {
  void* const first = get(100);
  std::set<void*> blocks = {first};
  for (uintptr_t id = 101; id < 100 + Workspaces::kMostStreams; ++id) blocks.insert(get(id));
  EXPECT_EQ(blocks.size(), Workspaces::kMostStreams);
  EXPECT_EQ(get(100), first);
  for (uintptr_t id = 200; id < 199 + Workspaces::kMostStreams; ++id) get(id);
  EXPECT_EQ(get(100), first);  // all others have gone before it
}

bool there(const void* memory) {
  cudaPointerAttributes attributes{};
  cudaPointerGetAttributes(&attributes, memory);
  return attributes.type == cudaMemoryTypeDevice;
}

// The call of another thread has its memory, and has launched nothing yet.
TEST_F(WorkspacesTest, ABlockStaysUntilItsCallIsLaunched) {
  get(300), get(301), get(300);
  std::shared_ptr<Workspaces::Block> used = block(300);
  void* const memory = used->memory.as<void>();
  for (uintptr_t id = 302; id < 302 + Workspaces::kMostStreams; ++id) get(id);
  EXPECT_TRUE(there(memory));
  used = nullptr;
  EXPECT_FALSE(there(memory));
}

int* word(uintptr_t of) { return Workspaces::fault_word(0, stream(of)).value(); }
bool tells(uintptr_t of) {
  return Workspaces::check_fault(word(of)).message().find("gave up") != std::string::npos;
}

// However many others have come since, and whatever became of its memory.
TEST_F(WorkspacesTest, TellsTheStreamOnceThatAKernelGaveUp) {
  get(1), get(2), get(1);
  *word(1) = kGaveUp;
  for (uintptr_t id = 2; id < Workspaces::kFaultWords; ++id) EXPECT_FALSE((get(id), tells(id))) << id;
  EXPECT_TRUE(tells(1));
  EXPECT_FALSE(tells(1));
}

TEST_F(WorkspacesTest, TellsAnyStreamThatAGraphGaveUp) {
  captures().id = first_;
  get(1);
  *word(1) = kGaveUp;
  captures().id = 0;
  captures().destroy(first_);
  captures().id = second_;
  EXPECT_NE(*word(1), kGaveUp);
  get(1, 1 << 20);  // the first one's goes
  captures().id = 0;
  EXPECT_TRUE(tells(2));
  EXPECT_FALSE(tells(2));
}

// Nor is any for a graph, whose large block is another's then.
TEST_F(WorkspacesTest, NothingIsAllocatedForAWord) {
  EXPECT_NE(word(1), nullptr);
  captures().allocations_left = 0;
  for (uintptr_t id = 1; id < 2 * Workspaces::kFaultWords; ++id) EXPECT_NE(word(id), nullptr);
  captures().id = first_;
  EXPECT_NE(word(1), nullptr);
  captures().allocations_left = -1;
  EXPECT_FALSE(captures().of_graph.contains(first_));
}

// An error that stays would be taken for that of a later launch.
TEST(Check, LeavesNoErrorBehind) {
  captures().allocations_left = 0;
  EXPECT_EQ(PinnedBuffer::allocate(1).status().code(), StatusCode::kOutOfMemory);
  captures().allocations_left = -1;
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(CopyToDevice, IsThereForStreamsThatDoNotWait) {
  const int from = 7;
  const DeviceBuffer to = DeviceBuffer::allocate(sizeof(int), "a test").value();
  ASSERT_EQ(copy_to_device(to.as<void>(), &from, sizeof(int), "a test").message(), "");
  EXPECT_EQ(*to.as<int>(), from);
}

}  // namespace
}  // namespace moesaic::cuda
