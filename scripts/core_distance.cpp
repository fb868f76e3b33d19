// How far two cores are from each other: nanoseconds that a word takes from one to the other, once a second.
//
//     g++ -O2 -pthread scripts/core_distance.cpp -o core_distance && ./core_distance [seconds]
//
// Linux; cores 0 and 1. On a rented machine the host may move them while this runs.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

constexpr int kRounds = 300000;

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) std::exit((std::puts("needs cores 0 and 1."), 2));
}

double nanoseconds_one_way() {
  alignas(128) std::atomic<int> word{0};
  std::thread other([&] {
    pin(1);
    for (int i = 0; i < kRounds; ++i) {
      while (word.load(std::memory_order_acquire) != 2 * i + 1) {}
      word.store(2 * i + 2, std::memory_order_release);
    }
  });
  pin(0);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    word.store(2 * i + 1, std::memory_order_release);
    while (word.load(std::memory_order_acquire) != 2 * i + 2) {}
  }
  other.join();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count() / kRounds / 2;
}

}  // namespace

int main(int count, char** arguments) {
  for (int left = count > 1 ? std::atoi(arguments[1]) : 1; left > 0; --left) {
    std::printf("%.0f ns\n", nanoseconds_one_way());
    std::fflush(stdout);
    if (left > 1) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}
