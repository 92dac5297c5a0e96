// Replaces the words that would tell who wrote a text that is made to be published.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace moesaic::app {

class PrivateWords {
 public:
  // The home folder, the user's name and the machine's, as the system tells them.
  PrivateWords();
  PrivateWords(const std::string& home, const std::string& user, const std::string& host);
  // The home folder becomes ~, the names USER and HOST where they stand as words.
  std::string remove_from(std::string text) const;

 private:
  std::vector<std::pair<std::string, std::string>> words_;  // and what stands for them
};

}  // namespace moesaic::app
