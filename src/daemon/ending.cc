// SPDX-License-Identifier: Apache-2.0
#include "daemon/ending.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

#include "base/log.h"
#include "base/result.h"

namespace gpumux::daemon {

namespace {

// For the last line.
constexpr size_t kReserveBytes = 64 * 1024;
std::atomic<char*> g_reserve;

void NoMemory() {
  char* const reserve = g_reserve.exchange(nullptr);
  if (!reserve) std::_Exit(ExitStatus(Code::kUnavailable));  // not even for that line
  delete[] reserve;
  EndForTheNextDaemon("there is no more memory");
}

// Asio and the C library's users throw without asking the new-handler first.
void Terminate() {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    NoMemory();
  } catch (...) {
  }
  std::abort();
}

}  // namespace

void EndForTheNextDaemon(const std::string& why) {
  LogError("{}: leaving; the next daemon takes over", why);
  std::_Exit(ExitStatus(Code::kUnavailable));
}

void EndWhenMemoryRunsOut() {
  g_reserve = new char[kReserveBytes];
  std::set_new_handler(NoMemory);
  std::set_terminate(Terminate);
}

}  // namespace gpumux::daemon
