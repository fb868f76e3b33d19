// A few threads that share out numbered items. Each begins with a range of its own, so that neighbouring items stream
// from memory to one core, and then takes from the ends of the others' ranges. Made for a machine that others use too:
// a caller waits only for items already begun, spinning is bounded, and idle threads sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace draftproof {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls work(item, worker) for every item in [0, count), the caller's thread being worker 0. One caller at a time:
  // hold `owner` around all calls that belong together.
  template <class Work>
  void run(int count, Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    if (count < 2 || threads_ == 1) {
      for (int item = 0; item < count; ++item) work(item, 0);
      return;
    }
    share(
        count, [](void* w, int item, int worker) { (*static_cast<Plain*>(w))(item, worker); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

  std::mutex owner;

 private:
  using Call = void (*)(void* work, int item, int worker);

  // Items left in a thread's range, first and end in one word: taken from either side by one exchange.
  struct alignas(64) Range {
    std::atomic<std::uint64_t> items{0};
  };

  void share(int count, Call call, void* work);
  bool drain(int worker);
  int take(int worker);
  bool has_items() const;
  void serve(int worker);
  void sleep();

  const int threads_;
  const std::unique_ptr<Range[]> ranges_;
  alignas(64) std::atomic<int> finished_{0};
  Call call_ = nullptr;
  void* work_ = nullptr;
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex gate_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Models with the same number of threads share a pool, so a draft model finds the target's threads awake.
std::shared_ptr<Pool> shared_pool(int threads);

}  // namespace draftproof
