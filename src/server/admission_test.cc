#include "server/admission.h"

#include <gtest/gtest.h>

#include <random>

namespace moesaic::server {
namespace {

using Ids = std::vector<uint64_t>;

TEST(Admission, AClientAloneHasAllOfIt) {
  Admission room(3);
  EXPECT_TRUE(room.admit("a", 1, 2).admitted);
  EXPECT_TRUE(room.admit("a", 2, 1).admitted);
  EXPECT_FALSE(room.admit("a", 3, 1).admitted);
  room.ended("a", 1);
  EXPECT_EQ(room.generations(), 2);
  EXPECT_FALSE(room.admit("a", 4, 2).admitted);
  EXPECT_TRUE(room.admit("a", 5, 1).admitted);
}

TEST(Admission, ALargeRequestIsTakenAlone) {
  Admission room(3);
  EXPECT_TRUE(room.admit("a", 1, 1).admitted);
  EXPECT_FALSE(room.admit("a", 2, 4).admitted);
  room.ended("a", 1);
  EXPECT_TRUE(room.admit("a", 3, 4).admitted);
  EXPECT_FALSE(room.admit("a", 4, 1).admitted);
  EXPECT_FALSE(room.admit("a", 5, 9).admitted);
  for (int i = 0; i < 4; ++i) room.ended("a", 3);
  EXPECT_EQ(room.generations(), 0);
}

TEST(Admission, WhoHasMostMakesRoom) {
  Admission room(4);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_TRUE(room.admit("a", id, 1).admitted);
  room.begun("a", 4);
  const auto b = room.admit("b", 5, 1);
  EXPECT_TRUE(b.admitted);
  EXPECT_EQ(b.dropped, Ids{3});  // the newest that waits
  room.ended("a", 3);            // says nothing new
  EXPECT_EQ(room.generations(), 4);
  EXPECT_EQ(room.admit("b", 6, 1).dropped, Ids{2});  // both have two then
  EXPECT_EQ(room.admit("c", 7, 1).dropped, Ids{6});  // the newest of equals
  EXPECT_FALSE(room.admit("a", 8, 1).admitted);      // it has most
  EXPECT_FALSE(room.admit("c", 9, 4).admitted);      // nothing is dropped in vain
  EXPECT_EQ(room.generations(), 4);
}

TEST(Admission, WhatIsAtWorkStays) {
  Admission room(2);
  for (uint64_t id = 1; id <= 2; ++id) {
    room.admit("a", id, 1);
    room.begun("a", id);
  }
  EXPECT_FALSE(room.admit("b", 3, 1).admitted);
  room.ended("a", 1);
  EXPECT_TRUE(room.admit("b", 4, 1).admitted);
}

TEST(Admission, WhatHasEndedIsNotDropped) {
  Admission room(3);
  for (uint64_t id = 1; id <= 3; ++id) room.admit("a", id, 1);
  room.ended("a", 3);  // it left while it waited
  EXPECT_TRUE(room.admit("b", 4, 1).admitted);
  EXPECT_EQ(room.admit("c", 5, 1).dropped, Ids{2});
}

// A client that has less than its equal share is never refused while another has more than that waiting.
TEST(Admission, RandomTrafficIsFair) {
  std::mt19937 random(3);
  Admission room(40);
  std::map<uint64_t, std::pair<std::string, int>> waiting;
  std::map<std::string, int> has;
  for (uint64_t id = 1; id <= 20000; ++id) {
    const std::string client(1, static_cast<char>('a' + random() % 5 * (random() % 2)));
    const int count = 1 + static_cast<int>(random() % 4);
    const auto decision = room.admit(client, id, count);
    int most = 0;
    for (const auto& [name, n] : has) most = std::max(most, name == client ? 0 : n);
    for (const uint64_t gone : decision.dropped) {
      auto& [owner, left] = waiting.at(gone);
      ASSERT_NE(owner, client);
      has[owner] -= left;
      waiting.erase(gone);
    }
    if (decision.admitted) {
      waiting[id] = {client, count};
      has[client] += count;
    } else {
      ASSERT_LT(most, has[client] + count + 8) << id;
    }
    while (!waiting.empty() && random() % 3 == 0) {
      auto at = waiting.begin();
      room.ended(at->second.first, at->first);
      --has[at->second.first];
      if (--at->second.second == 0) waiting.erase(at);
    }
    int all = 0;
    for (const auto& [name, n] : has) all += n;
    ASSERT_EQ(room.generations(), all);
    ASSERT_LE(all, 40);
  }
}

}  // namespace
}  // namespace moesaic::server
