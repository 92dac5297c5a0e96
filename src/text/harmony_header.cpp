#include "text/harmony_header.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <utility>

#include "base/strings.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

using PartKind = HeaderPart::Kind;

constexpr std::array<std::string_view, 3> kTypes = {"json", "code", "text"};
constexpr std::array<std::string_view, 4> kOtherRoles = {"user", "system", "developer", "tool"};
constexpr std::string_view kAssistant = "assistant", kTo = "to=", kFunctions = "functions.";
constexpr std::string_view kSpaces = " \t\r\n\v\f";

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_word_byte(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || (c & 0x80) != 0; }
bool has_word(std::string_view text) { return std::any_of(text.begin(), text.end(), is_word_byte); }

// A content type that is not known here, such as text/plain.
bool may_be_type(std::string_view word) { return is_made_of(word, "_/+-"); }

// The channel that a word begins with; empty: none.
std::string_view channel_in_front(std::string_view word) {
  const auto* found = std::find_if(kChannels.begin(), kChannels.end(),
                                   [&](std::string_view name) { return word.starts_with(name); });
  return found == kChannels.end() ? std::string_view() : *found;
}

// In the role part a word of ordinary text may begin like a channel: "finally".
std::string_view channel_as_role(std::string_view word) {
  const std::string_view name = channel_in_front(word);
  return name.size() < word.size() && is_lower(word[name.size()]) ? std::string_view() : name;
}

// Behind "assistant", where a channel or a recipient is written to it without a space; else the word.
std::string_view behind_assistant(std::string_view word) {
  if (!word.starts_with(kAssistant)) return word;
  const std::string_view rest = word.substr(kAssistant.size());
  return !channel_as_role(rest).empty() || rest.starts_with(kTo) ? rest : word;
}

void set_recipient(std::string_view name, PartKind part, HarmonyHeader& header) {
  header.recipient_last = part == PartKind::kChannel;
  header.regular = header.regular && header.recipient.empty();
  header.recipient = name == "all" || name == "user" || name == kAssistant ? "" : name;
}

void set_type(std::string type, HarmonyHeader& header) {
  header.regular = header.regular && header.content_type.empty();
  if (header.content_type.empty()) header.content_type = std::move(type);
}

void set_channel(std::string_view name, HarmonyHeader& header) {
  header.regular = header.regular && header.channel.empty();
  header.channel = name;
}

// Chooses the channel where no part names one.
void set_garbled_channel(HarmonyHeader& header) {
  header.regular = false;
  if (header.channel.empty()) header.channel = header.recipient.empty() ? "analysis" : "commentary";
}

// ---- headers that are complete

class WordReader {
 public:
  void read(const HeaderPart& part) {
    first_ = true, words_.clear(), rest_.clear();
    std::istringstream words(utf8_lossy(part.text));
    for (std::string word; words >> word;) {
      if (word == kTo && words >> word) word.insert(0, kTo);  // a space before the name
      take(part.kind, word);
    }
    if (part.kind == PartKind::kChannel) {
      garbled_ = garbled_ || first_;  // nothing but a recipient
      end_channel_part();
    } else if (part.kind == PartKind::kRole) {
      end_role_part();
    } else {
      add_text(words_);
    }
  }
  HarmonyHeader finish() {
    if (header_.channel.empty()) header_.channel = role_channel_;
    if (garbled_) set_garbled_channel(header_);
    if (!header_.text.empty()) header_.regular = false;
    return std::move(header_);
  }

 private:
  void take(PartKind kind, std::string_view word) {
    if (kind == PartKind::kRole) word = behind_assistant(word);
    if (word.starts_with(kTo)) {
      to_assistant_ = to_assistant_ || word.substr(kTo.size()) == kAssistant;
      return set_recipient(word.substr(kTo.size()), kind, header_);
    }
    if (kind == PartKind::kRole) return take_in_role(word);
    if (std::exchange(first_, false)) {
      if (kind == PartKind::kChannel) return take_channel(word);
      return set_type("<|constrain|>" + std::string(word), header_);
    }
    if (word == kAssistant || is_one_of(kChannels, word)) {
      header_.regular = false;
    } else if (is_one_of(kTypes, word)) {
      set_type(std::string(word), header_);
    } else {
      words_.emplace_back(word);
    }
  }
  void take_in_role(std::string_view word) {
    const std::string_view channel = channel_as_role(word);
    if (!channel.empty()) {
      role_channel_ = channel;
      header_.regular = false;
      word.remove_prefix(channel.size());
      if (has_word(word)) words_.emplace_back(word);
    } else if (is_one_of(kTypes, word)) {
      set_type(std::string(word), header_);
    } else if (!word.starts_with(kAssistant)) {
      words_.emplace_back(word);
    }
  }
  void take_channel(std::string_view word) {
    const std::string_view channel = channel_in_front(word);
    word.remove_prefix(channel.size());
    if (!channel.empty()) set_channel(channel, header_);
    garbled_ = garbled_ || channel.empty();
    if (word.starts_with(kTo)) return set_recipient(word.substr(kTo.size()), PartKind::kChannel, header_);
    if (!channel.empty() && is_one_of(kTypes, word)) return set_type(std::string(word), header_);
    if (!word.empty()) header_.regular = false;
    rest_ = word;
  }
  void end_channel_part() {
    if (words_.size() == 1 && may_be_type(words_[0])) return set_type(words_[0], header_);
    if (words_.empty()) return;
    if (!rest_.empty()) words_.insert(words_.begin(), rest_);
    add_text(words_);
  }
  void end_role_part() {
    const bool foreign = words_.size() == 1 && (is_one_of(kOtherRoles, words_[0]) || to_assistant_ ||
                                                words_[0].starts_with(kFunctions));
    header_.foreign = header_.foreign || foreign;
    if (std::any_of(words_.begin(), words_.end(), has_word)) add_text(words_);
  }
  void add_text(const std::vector<std::string>& words) {
    for (const std::string& word : words) header_.text += (header_.text.empty() ? "" : " ") + word;
  }

  HarmonyHeader header_;
  std::string role_channel_;
  bool garbled_ = false;       // a channel part names no channel
  bool to_assistant_ = false;  // as only others write
  // The state of the part that is read: whether its first word is still to come, the rest of that word, and
  // words that belong to no header.
  bool first_ = true;
  std::string rest_;
  std::vector<std::string> words_;
};

// ---- headers without <|message|>

// Takes a header's words from the front of a part, which they are in before the text begins.
class FrontReader {
 public:
  explicit FrontReader(HarmonyHeader& header) : header_(header) {}

  void read(const HeaderPart& part) {
    text_ = part.text;
    bool first = true;
    while (true) {
      const std::string_view word = next();
      if (word.empty()) break;
      if (word.starts_with(kTo) && word.size() > kTo.size()) {
        set_recipient(utf8_lossy(word.substr(kTo.size())), part.kind, header_);
        drop(word.size());
        continue;
      }
      if (part.kind == PartKind::kRole ? !take_in_role(word, first) : !take(part.kind, word, first)) break;
      first = false;
    }
    if (text_.find_first_not_of(kSpaces) != std::string_view::npos) header_.text += text_;
  }
  bool garbled() const { return garbled_; }
  const std::string& role_channel() const { return role_channel_; }

 private:
  // The first word, which JSON ends too.
  std::string_view next() const {
    const size_t begin = std::min(text_.find_first_not_of(kSpaces), text_.size());
    return text_.substr(begin, std::min(text_.find_first_of(" \t\r\n\v\f{[", begin), text_.size()) - begin);
  }
  // So many bytes of the first word, and the white space before it.
  void drop(size_t bytes) { text_.remove_prefix(text_.find_first_not_of(kSpaces) + bytes); }
  // True if white space and a recipient follow.
  bool recipient_follows(size_t bytes) const {
    FrontReader rest = *this;
    rest.drop(bytes);
    return rest.next().starts_with(kTo);
  }
  bool json_follows(size_t bytes) const {
    const size_t at = text_.find_first_not_of(kSpaces, text_.find_first_not_of(kSpaces) + bytes);
    return at == std::string_view::npos ? !header_.recipient.empty() : text_[at] == '{' || text_[at] == '[';
  }

  // False: the text begins here.
  bool take_in_role(std::string_view word, bool first) {
    const std::string_view rest = behind_assistant(word);
    if (word == kAssistant || rest.size() < word.size()) {
      if (!first) return false;
      drop(rest.size() < word.size() ? kAssistant.size() : word.size());
      return true;
    }
    const std::string_view channel = channel_as_role(word);
    if (channel.empty()) return take_type(word);
    role_channel_ = channel;
    drop(channel.size());
    return word.size() == channel.size();
  }
  bool take(PartKind kind, std::string_view word, bool first) {
    if (kind == PartKind::kConstrain) return take_type(word, "<|constrain|>");
    if (!first) return take_type(word);
    const std::string_view channel = channel_in_front(word);
    if (!channel.empty()) set_channel(channel, header_);
    garbled_ = garbled_ || channel.empty();
    if (recipient_follows(word.size())) {
      drop(word.size());
      return true;
    }
    if (channel.empty()) return false;
    drop(channel.size());
    return word.size() == channel.size() || word.substr(channel.size()).starts_with(kTo);
  }
  bool take_type(std::string_view word, std::string before = {}) {
    if (!is_one_of(kTypes, word) || !(json_follows(word.size()) || recipient_follows(word.size())))
      return false;
    set_type(before.append(word), header_);
    drop(word.size());
    return true;
  }

  HarmonyHeader& header_;
  std::string_view text_;  // the rest of the part
  bool garbled_ = false;
  std::string role_channel_;
};

}  // namespace

HarmonyHeader read_header(const HeaderParts& parts) {
  WordReader reader;
  for (const HeaderPart& part : parts) reader.read(part);
  return reader.finish();
}

HarmonyHeader read_unfinished_header(const HeaderParts& parts, bool ended_by_call, std::string_view unnamed) {
  HarmonyHeader header;
  FrontReader reader(header);
  for (const HeaderPart& part : parts) reader.read(part);
  if (header.channel.empty()) header.channel = reader.role_channel();
  if (reader.garbled()) set_garbled_channel(header);
  header.regular = false;
  header.text = utf8_lossy(header.text);
  const size_t begin = header.text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) header.text.clear();
  const bool call = ended_by_call || (!header.text.empty() && header.text[begin] == '{');
  if (!header.recipient.empty() && !call) {
    header.recipient.clear();
    if (header.channel != "final") header.channel = "analysis";
  }
  if (header.channel.empty()) header.channel = header.recipient.empty() ? unnamed : "commentary";
  return header;
}

bool is_foreign_role(std::string_view text, bool complete) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  if (text.empty()) return false;
  const auto may_be = [&](std::string_view own) {
    return text.starts_with(own) || (!complete && own.starts_with(text));
  };
  return !may_be(kAssistant) && !may_be(kTo) && std::none_of(kChannels.begin(), kChannels.end(), may_be);
}

}  // namespace moesaic
