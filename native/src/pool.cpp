#include "pool.h"

#include <map>

#include "float_mode.h"

namespace draftproof {
namespace {

constexpr int kSpins = 4000;  // some 50 to 100 microseconds: longer than the gaps within a forward

constexpr std::uint64_t pack(std::uint32_t count, std::uint32_t next) {
  return static_cast<std::uint64_t>(count) << 32 | next;
}
constexpr std::uint32_t count_of(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket >> 32); }
constexpr std::uint32_t next_of(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket); }

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A thread that waits longer than a moment lets others run: the one it waits for may need this very core.
void back_off(int spin) {
  if (spin < kSpins) pause();
  else std::this_thread::yield();
}

}  // namespace

Pool::Pool(int threads) {
  for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { serve(worker); });
}

Pool::~Pool() {
  {
    const std::lock_guard lock(gate_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool Pool::has_items() const {
  const std::uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
  return next_of(ticket) < count_of(ticket);
}

bool Pool::take_one(int worker) {
  if (!has_items()) return false;
  const std::uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
  if (next_of(ticket) >= count_of(ticket)) return false;
  call_(work_, static_cast<int>(next_of(ticket)), worker);
  finished_.fetch_add(1, std::memory_order_release);
  return true;
}

void Pool::share(int count, Call call, void* work) {
  call_ = call, work_ = work;
  finished_.store(0, std::memory_order_relaxed);
  ticket_.store(pack(static_cast<std::uint32_t>(count), 0), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard lock(gate_);
    }  // a thread between its last look and its sleep holds the gate
    wake_.notify_all();
  }
  while (take_one(0)) {
  }
  for (int spin = 0; finished_.load(std::memory_order_acquire) < count; ++spin) back_off(spin);
}

void Pool::sleep() {
  std::unique_lock lock(gate_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [this] { return stopping_ || has_items(); });
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Pool::serve(int worker) {
  const StandardFloats floats;
  for (int spin = 0; !stopping_; ++spin) {
    if (take_one(worker)) spin = 0;
    else if (spin < kSpins) pause();
    else sleep(), spin = 0;
  }
}

std::shared_ptr<Pool> shared_pool(int threads) {
  static std::mutex guard;
  static std::map<int, std::weak_ptr<Pool>> pools;
  const std::lock_guard lock(guard);
  std::shared_ptr<Pool> pool = pools[threads].lock();
  if (!pool) pools[threads] = pool = std::make_shared<Pool>(threads);
  return pool;
}

}  // namespace draftproof
