#include "pool.h"

#include <map>

#include "float_mode.h"

namespace draftproof {
namespace {

constexpr int kSpins = 4000;  // some 50 to 100 microseconds: longer than the gaps within a forward

constexpr std::uint64_t pack(std::uint32_t first, std::uint32_t end) {
  return static_cast<std::uint64_t>(end) << 32 | first;
}
constexpr std::uint32_t end_of(std::uint64_t items) { return static_cast<std::uint32_t>(items >> 32); }
constexpr std::uint32_t first_of(std::uint64_t items) { return static_cast<std::uint32_t>(items); }
constexpr bool any(std::uint64_t items) { return first_of(items) < end_of(items); }

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

Pool::Pool(int threads) : threads_(threads), ranges_(std::make_unique<Range[]>(static_cast<std::size_t>(threads))) {
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
  for (int worker = 0; worker < threads(); ++worker)
    if (any(ranges_[worker].items.load(std::memory_order_seq_cst))) return true;
  return false;
}

// The next item of the thread's own range, or else the last of another's; -1 where none is left. What call_ and work_
// are is read behind it: an item that was taken belongs to the job that is running.
int Pool::take(int worker) {
  for (int i = 0; i < threads(); ++i) {
    std::atomic<std::uint64_t>& range = ranges_[(worker + i) % threads()].items;
    std::uint64_t items = range.load(std::memory_order_acquire);
    while (any(items)) {
      const std::uint32_t first = first_of(items), end = end_of(items);
      const std::uint64_t rest = i == 0 ? pack(first + 1, end) : pack(first, end - 1);
      if (range.compare_exchange_weak(items, rest, std::memory_order_acq_rel, std::memory_order_acquire))
        return static_cast<int>(i == 0 ? first : end - 1);
    }
  }
  return -1;
}

// Works until nothing is left to take; false if that was so at once. Finished items are told together: telling each
// would send the counter back and forth between the cores, which small items feel.
bool Pool::drain(int worker) {
  int done = 0;
  for (int item = take(worker); item >= 0; item = take(worker), ++done) call_(work_, item, worker);
  if (done > 0) finished_.fetch_add(done, std::memory_order_release);
  return done > 0;
}

void Pool::share(int count, Call call, void* work) {
  call_ = call, work_ = work;
  finished_.store(0, std::memory_order_relaxed);
  const auto bound = [&](int worker) {
    return static_cast<std::uint32_t>(static_cast<long>(count) * worker / threads());
  };
  for (int worker = 0; worker < threads(); ++worker)
    ranges_[worker].items.store(pack(bound(worker), bound(worker + 1)), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard lock(gate_);
    }  // a thread between its last look and its sleep holds the gate
    wake_.notify_all();
  }
  drain(0);
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
    if (drain(worker)) spin = 0;
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
