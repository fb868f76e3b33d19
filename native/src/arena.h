// Memory in large blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace draftproof {

// Memory for what every call reads from end to end, weights and cached keys: large blocks on huge pages where the
// system gives them. Without huge pages the look-up of addresses costs a tenth of a forward.
class Arena {
 public:
  explicit Arena(std::size_t block = std::size_t{16} << 20) : least_(block) {}
  // Zeroed bytes, aligned to a cache line; they live as long as any copy of the pointer.
  std::shared_ptr<std::uint8_t[]> allocate(std::size_t bytes);

 private:
  std::size_t least_;  // bytes of a block
  std::shared_ptr<std::uint8_t[]> block_;
  std::size_t used_ = 0, size_ = 0;
};

}  // namespace draftproof
