#include "arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace draftproof {
namespace {

constexpr std::size_t kCacheLine = 64, kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

std::shared_ptr<std::uint8_t[]> huge_block(std::size_t bytes) {
  std::uint8_t* const block = static_cast<std::uint8_t*>(std::aligned_alloc(kHugePage, bytes));
  if (!block) throw std::bad_alloc();
#if defined(__linux__)
  madvise(block, bytes, MADV_HUGEPAGE);
#endif
  std::memset(block, 0, bytes);
  return {block, [](std::uint8_t* p) { std::free(p); }};
}

}  // namespace

std::shared_ptr<std::uint8_t[]> Arena::allocate(std::size_t bytes) {
  bytes = round_up(bytes, kCacheLine);
  if (size_ - used_ < bytes) {
    size_ = round_up(std::max(bytes, least_), kHugePage), used_ = 0;
    block_ = huge_block(size_);
  }
  std::shared_ptr<std::uint8_t[]> piece(block_, block_.get() + used_);
  used_ += bytes;
  return piece;
}

}  // namespace draftproof
