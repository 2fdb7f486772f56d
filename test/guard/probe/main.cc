// SPDX-License-Identifier: Apache-2.0
//
// What a tenant's program sees, for the tests of the guard: each sub-command
// does one thing with the driver and prints one line a step. Runs under
// `gpumux run` or bare.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "commands.h"

using namespace gpumux::probe;

int main(int argc, char** argv) {
  const std::vector<std::string> a(argv + 1, argv + argc);
  auto number = [&](size_t i) { return i < a.size() ? std::strtoull(a[i].c_str(), nullptr, 10) : 0; };
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (a.empty()) return 2;
  if (a[0] == "lookup") return LookUp(a.at(1), number(2));
  if (a[0] == "absent") return Absent();
  if (a[0] == "untouched") return Untouched();
  if (a[0] == "families") return Families(number(1));
  if (a[0] == "more-families") return MoreFamilies(number(1));
  if (a[0] == "growth") return Growth();
  if (a[0] == "green") return Green();
  if (a[0] == "green-over") return GreenOver();
  if (a[0] == "told") return Told();
  if (a[0] == "table") return Table();
  if (a[0] == "hold") return Hold(a.at(1).c_str());
  if (a[0] == "faults") return Faults(a.at(1), a.size() > 2 ? a[2] : "");
  if (a[0] == "race") return Race(argv[0], static_cast<int>(number(1)), number(2));
  if (a[0] == "race-member") return RaceMember(static_cast<int>(number(1)), number(2), number(3));
  if (a[0] == "killed") return Killed(number(1), number(2));
  if (a[0] == "survive") return Survive(number(1), a.at(2).c_str());
  if (a[0] == "orphan") return Orphan();
  if (a[0] == "fork-before") return ForkBefore(number(1));
  if (a[0] == "fork-after") return ForkAfter();
  std::fprintf(stderr, "unknown: %s\n", a[0].c_str());
  return 2;
}
