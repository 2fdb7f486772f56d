// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace gpumux::test {

// Makes inputs that are nearly right out of inputs that are: the same ones for
// the same seed, with any compiler.
class Mutation {
 public:
  Mutation(uint64_t seed, std::vector<std::string> corpus) : random_(seed), corpus_(std::move(corpus)) {}

  std::string Next();

 private:
  void Change(std::string* text);
  size_t At(const std::string& text) { return text.empty() ? 0 : random_() % text.size(); }

  std::mt19937_64 random_;
  std::vector<std::string> corpus_;
};

}  // namespace gpumux::test
