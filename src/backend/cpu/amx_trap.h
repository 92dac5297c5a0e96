// For tests on a machine without AMX: its instructions end in SIGILL there, and this handler carries them out
// on a TileModel, one per thread, after decoding them. So the very code for the hardware runs: its encodings,
// operands, configurations and order.
#pragma once

#include <ucontext.h>

#include <atomic>
#include <csignal>

#include "backend/cpu/tile_model.h"

namespace moesaic::cpu {
namespace {

// A VEX instruction of map 0F38 with its operands (Software Developer's Manual, volume 2, 2.3).
class VexInstruction {
 public:
  VexInstruction(const uint8_t* at, const greg_t* registers) : start_(at), registers_(registers) {
    constexpr uint8_t kVex3 = 0xC4, kMap0F38 = 2;
    if (at[0] != kVex3 || (at[1] & 31) != kMap0F38) return;
    extend_reg_ = (at[1] & 0x80) == 0, extend_index_ = (at[1] & 0x40) == 0,
    extend_base_ = (at[1] & 0x20) == 0;
    second = ~(at[2] >> 3) & 15;
    prefix = at[2] & 3;
    opcode = at[3];
    mode_ = at[4] >> 6;
    reg = (at[4] >> 3 & 7) + 8 * extend_reg_;
    rm = (at[4] & 7) + 8 * extend_base_;
    at += 5;
    if (mode_ != 3) at = read_address(at);
    size = at - start_;
  }

  bool in_memory() const { return mode_ != 3; }

  int prefix = 0;  // 0 none, 1 66, 2 F3, 3 F2
  int opcode = -1, reg = 0, rm = 0, second = 0;
  int64_t size = 0;
  uint8_t* address = nullptr;
  int64_t index = 0;  // the address's index register, where there is one: its value without scale

 private:
  int64_t value(int number) const {
    constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kRegisters[number]];
  }
  // A tile's address is base and displacement: the index is its stride.
  const uint8_t* read_address(const uint8_t* at) {
    int64_t base = 0;
    bool has_base = true;
    if ((rm & 7) == 4) {
      const uint8_t sib = *at++;
      const int index_number = (sib >> 3 & 7) + 8 * extend_index_;
      if (index_number != 4) index = value(index_number) * (int64_t{1} << (sib >> 6));
      has_base = (sib & 7) != 5 || mode_ != 0;
      if (has_base) base = value((sib & 7) + 8 * extend_base_);
    } else if ((rm & 7) == 5 && mode_ == 0) {
      int32_t offset;
      std::memcpy(&offset, at, 4);
      address = const_cast<uint8_t*>(at + 4 + offset);
      return at + 4;
    } else {
      base = value(rm);
    }
    int32_t displacement = 0;
    if (mode_ == 1) displacement = int32_t{static_cast<int8_t>(*at++)};
    if (mode_ == 2 || !has_base) std::memcpy(&displacement, at, 4), at += 4;
    address = reinterpret_cast<uint8_t*>(base + displacement);
    return at;
  }

  const uint8_t* start_;
  const greg_t* registers_;
  int mode_ = 3;
  bool extend_reg_ = false, extend_index_ = false, extend_base_ = false;
};

thread_local TileModel trapped_tiles;
std::atomic<int64_t> trapped_instructions{0};

// False if it is none of AMX that the kernels use.
bool run_in_software(const VexInstruction& i, TileModel& tiles) {
  constexpr int kNone = 0, kF3 = 2, kF2 = 3;
  const auto is = [&](int opcode, int prefix, bool memory) {
    return i.opcode == opcode && i.prefix == prefix && i.in_memory() == memory;
  };
  if (is(0x49, kNone, true) && i.reg == 0) {
    TileConfig config;
    std::memcpy(&config, i.address + i.index, sizeof config);
    return tiles.load_config(config), true;
  }
  if (is(0x49, kNone, false) && i.reg == 0 && i.rm == 0) return tiles.release(), true;
  if (is(0x49, kF2, false)) return tiles.zero(i.reg), true;
  if (is(0x4B, kF2, true)) return tiles.load(i.reg, i.address, i.index), true;
  if (is(0x4B, kF3, true)) return tiles.store(i.reg, i.address, i.index), true;
  if (is(0x5E, kF2, false)) return tiles.dot_int8(i.reg, i.rm, i.second), true;
  if (is(0x5C, kF3, false)) return tiles.dot_bf16(i.reg, i.rm, i.second), true;
  return false;
}

class AmxTrap {
 public:
  AmxTrap() {
    struct sigaction action = {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~AmxTrap() { sigaction(SIGILL, &before_, nullptr); }
  AmxTrap(const AmxTrap&) = delete;
  AmxTrap& operator=(const AmxTrap&) = delete;

  static int64_t instructions() { return trapped_instructions; }

 private:
  static void on_illegal_instruction(int, siginfo_t*, void* context) {
    greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const VexInstruction instruction(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
    if (!run_in_software(instruction, trapped_tiles)) std::abort();
    registers[REG_RIP] += instruction.size;
    ++trapped_instructions;
  }
  struct sigaction before_ = {};
};

}  // namespace
}  // namespace moesaic::cpu
