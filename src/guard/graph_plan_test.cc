// SPDX-License-Identifier: Apache-2.0
#include "guard/graph_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace gpumux::guard {
namespace {

constexpr int64_t kBudgetNs = 100'000;

using Edges = std::vector<GraphPlan::Edge>;

Edges Chain(uint32_t nodes) {
  Edges edges;
  for (uint32_t i = 0; i + 1 < nodes; i++) edges.push_back({i, i + 1});
  return edges;
}

std::vector<uint32_t> EndsOf(const GraphPlan& plan, uint32_t part, size_t nodes) {
  std::vector<uint32_t> out(nodes);
  out.resize(plan.Ends(part, out.data()));
  return out;
}

std::vector<uint32_t> BeginsOf(const GraphPlan& plan, uint32_t part, size_t nodes) {
  std::vector<uint32_t> out(nodes);
  out.resize(plan.Begins(part, out.data()));
  return out;
}

TEST(GraphPlan, AChainIsCutEachBudget) {
  const Edges edges = Chain(100);
  const std::vector<int64_t> ns(100, 20'000);
  GraphPlan plan;
  ASSERT_TRUE(plan.Make(100, edges.data(), edges.size(), ns.data(), kBudgetNs));
  ASSERT_EQ(plan.parts(), 20u);
  EXPECT_EQ(plan.PartOf(4), 0u);
  EXPECT_EQ(plan.PartOf(5), 1u);
  EXPECT_EQ(EndsOf(plan, 0, 100), std::vector<uint32_t>{4});
  EXPECT_EQ(BeginsOf(plan, 1, 100), std::vector<uint32_t>{5});
}

TEST(GraphPlan, AShortOneIsNotCut) {
  const Edges edges = Chain(4);
  const std::vector<int64_t> ns(4, 10'000);
  GraphPlan plan;
  ASSERT_TRUE(plan.Make(4, edges.data(), edges.size(), ns.data(), kBudgetNs));
  EXPECT_EQ(plan.parts(), 1u);
}

TEST(GraphPlan, ANodeThatTakesNothingBelongsToWhatIsThere) {
  const Edges edges = Chain(3);
  const std::vector<int64_t> ns = {300'000, 0, 300'000};
  GraphPlan plan;
  ASSERT_TRUE(plan.Make(3, edges.data(), edges.size(), ns.data(), kBudgetNs));
  EXPECT_EQ(plan.parts(), 2u);
  EXPECT_EQ(plan.PartOf(1), 0u);
}

TEST(GraphPlan, WhatIsNoAcyclicGraphIsRefused) {
  const std::vector<int64_t> ns(3, 1);
  const Edges circle = {{0, 1}, {1, 2}, {2, 0}}, itself = {{1, 1}}, elsewhere = {{0, 3}};
  for (const Edges& edges : {circle, itself, elsewhere}) {
    GraphPlan plan;
    EXPECT_FALSE(plan.Make(3, edges.data(), edges.size(), ns.data(), kBudgetNs));
  }
  GraphPlan plan;
  EXPECT_FALSE(plan.Make(0, nullptr, 0, nullptr, kBudgetNs));
}

// With the cuts as nodes: who comes after whom.
std::vector<std::vector<bool>> Reach(size_t nodes, const Edges& edges, const GraphPlan& plan) {
  Edges all = edges;
  const size_t total = nodes + plan.parts() - 1;
  for (uint32_t cut = 0; cut + 1 < plan.parts(); cut++) {
    const auto node = static_cast<uint32_t>(nodes + cut);
    for (const uint32_t end : EndsOf(plan, cut, nodes)) all.push_back({end, node});
    for (const uint32_t begin : BeginsOf(plan, cut + 1, nodes)) all.push_back({node, begin});
  }
  std::vector<std::vector<bool>> reach(total, std::vector<bool>(total));
  for (const auto& edge : all) reach[edge.from][edge.to] = true;
  for (size_t k = 0; k < total; k++)
    for (size_t i = 0; i < total; i++)
      for (size_t j = 0; reach[i][k] && j < total; j++)
        if (reach[k][j]) reach[i][j] = true;
  return reach;
}

TEST(GraphPlan, OfAnyGraphEachCutIsBetweenAllThatIsBeforeItAndAllThatIsAfter) {
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same each time
  size_t cuts = 0;
  for (int round = 0; round < 300; round++) {
    const size_t nodes = 1 + random() % 24;
    // Any order of the numbers, so that they are not sorted already.
    std::vector<uint32_t> name(nodes);
    for (uint32_t i = 0; i < nodes; i++) name[i] = i;
    std::shuffle(name.begin(), name.end(), random);
    Edges edges;
    for (uint32_t i = 0; i < nodes; i++)
      for (uint32_t j = i + 1; j < nodes; j++)
        if (random() % 4 == 0) edges.push_back({name[i], name[j]});
    std::shuffle(edges.begin(), edges.end(), random);
    std::vector<int64_t> ns(nodes);
    for (int64_t& value : ns) value = random() % 5 == 0 ? 0 : static_cast<int64_t>(random() % 150'000);
    GraphPlan plan;
    ASSERT_TRUE(plan.Make(nodes, edges.data(), edges.size(), ns.data(), kBudgetNs));
    cuts += plan.parts() - 1;
    const auto reach = Reach(nodes, edges, plan);
    for (size_t i = 0; i < reach.size(); i++) EXPECT_FALSE(reach[i][i]) << "a circle";
    std::vector<int64_t> sums(plan.parts());
    for (uint32_t i = 0; i < nodes; i++) {
      sums[plan.PartOf(i)] += ns[i];
      for (uint32_t cut = 0; cut + 1 < plan.parts(); cut++) {
        const bool before = plan.PartOf(i) <= cut;
        EXPECT_EQ(reach[i][nodes + cut], before);
        EXPECT_EQ(reach[nodes + cut][i], !before);
      }
    }
    // One node over the budget is the most: its own, or half of one.
    for (const int64_t sum : sums) EXPECT_LE(sum, kBudgetNs + 150'000);
  }
  EXPECT_GT(cuts, 1000u);
}

}  // namespace
}  // namespace gpumux::guard
