// The header of a message in harmony, as models write it: in the order of the format and in others, with
// parts repeated or garbled, and without the token that should end it.
//
// A header has parts: one behind <|start|>, which names the role, and one behind each <|channel|> and
// <|constrain|>. Words are what white space separates. The rule is that what is repeated counts once, that of
// what contradicts itself the last counts, and that nothing else of a header is lost:
//
// - to=NAME, in any part: the recipient. all, user and assistant are nobody in particular.
// - The first word of a channel part: the channel that its front names (analysis, commentary, final). A part
//   that names none is analysis, or commentary where the message has a recipient, unless another part names
//   one. Where there is no channel part, a word of the role part may name the channel.
// - The word behind the channel, and the first one behind <|constrain|>: the content type.
// - The role: assistant, or nothing. Any other is somebody whom the model has invented.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

inline constexpr std::array<std::string_view, 3> kChannels = {"analysis", "commentary", "final"};

struct HeaderPart {
  enum class Kind { kRole, kChannel, kConstrain };
  Kind kind = Kind::kRole;
  std::string text;  // bytes as they came
};
using HeaderParts = std::vector<HeaderPart>;

struct HarmonyHeader {
  std::string recipient;        // empty: nobody in particular
  bool recipient_last = false;  // it stands in a channel's part
  std::string channel;          // analysis, commentary or final; empty: none is named
  std::string content_type;     // as Message has it
  std::string text;
  bool foreign = false;  // not the assistant's
  bool regular = true;   // as the format has it
};

// Reads a header that <|message|> ends, or its beginning where another <|channel|> comes. text: words that
// belong to no header, which stand for a message without <|message|> before this one. The rest of a channel's
// word (analysis?, final_answer) and a single word without letters are none.
HarmonyHeader read_header(const HeaderParts& parts);

// Reads a header that a stop token ends, or that has become too long. text: all behind the words that are
// taken from the front of each part, a rest of the channel's word included (finalAll done.). It is a call if
// there is a recipient, and the text begins with { or <|call|> ended it; otherwise nobody is the recipient,
// and what is not final is analysis. unnamed: the channel where none is named.
HarmonyHeader read_unfinished_header(const HeaderParts& parts, bool ended_by_call, std::string_view unnamed);

// True for a text behind <|start|>, which may go on (or, with `complete`, does not), that names neither the
// assistant nor one of its channels.
bool is_foreign_role(std::string_view text, bool complete);

}  // namespace moesaic
