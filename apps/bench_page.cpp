#include "bench_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "chat/terminal_text.h"
#include "checkpoint/json.h"

namespace moesaic::app {
namespace {

// ---- runs from files ----

constexpr int kMostNumber = 1 << 30;

double number_at(const nlohmann::json& line, const char* key) {
  const nlohmann::json& value = member(line, key);
  return value.is_number() ? value.get<double>() : std::nan("");
}
std::optional<int> count_of(const nlohmann::json& line, const char* key) {
  const double x = number_at(line, key);
  return x >= 0 && x <= kMostNumber && x == std::floor(x) ? std::optional(static_cast<int>(x)) : std::nullopt;
}

// "pp512" or "tg128".
bool read_test(const std::string& test, BenchPoint& point) {
  point.prefill = test.starts_with("pp");
  if (!point.prefill && !test.starts_with("tg")) return false;
  point.tokens = number_of<int>(std::string_view(test).substr(2)).value_or(0);
  return point.tokens > 0;
}

std::optional<BenchPoint> own_point(const nlohmann::json& line) {
  BenchPoint p;
  const auto depth = count_of(line, "depth"), batch = count_of(line, "batch");
  if (!read_test(string_or(line, "test", ""), p) || !depth || !batch || *batch == 0) return std::nullopt;
  p.depth = *depth, p.batch = *batch;
  p.tok_s = number_at(line, "tok_s"), p.least = number_at(line, "tok_s_min"),
  p.most = number_at(line, "tok_s_max");
  const double share = number_at(line, "share");
  if (share > 0) p.roofline = p.tok_s / share;
  return p;
}

// "gpt-oss-20b on cuda:0 (file.json)", as far as the line says so.
std::string name_of(const nlohmann::json& line, const std::string& file) {
  if (!line.is_object()) return file;
  const bool llama = line.contains("avg_ts");
  const std::string model = string_or(line, llama ? "model_type" : "model", ""),
                    device = string_or(line, llama ? "gpu_info" : "device", "");
  if (model.empty()) return file;
  return fmt::format("{}{}{} ({})", model, device.empty() ? "" : " on ", device, file);
}

// llama-bench has one sequence, and a mean with its deviation.
std::optional<BenchPoint> llama_point(const nlohmann::json& line) {
  const auto prompt = count_of(line, "n_prompt"), generated = count_of(line, "n_gen");
  if (!prompt || !generated || (*prompt > 0) == (*generated > 0)) return std::nullopt;
  const double mean = number_at(line, "avg_ts"), deviation = number_at(line, "stddev_ts");
  return BenchPoint{.prefill = *prompt > 0,
                    .tokens = *prompt + *generated,
                    .depth = count_of(line, "n_depth").value_or(0),
                    .tok_s = mean,
                    .least = std::isfinite(deviation) ? mean - deviation : mean,
                    .most = std::isfinite(deviation) ? mean + deviation : mean};
}

// False for NaN and for rates that no machine has, which no chart could show.
bool is_sound(const BenchPoint& p) {
  constexpr double kLeast = 1e-6, kMost = 1e12;  // tokens a second
  const auto within = [](double x) { return x >= kLeast && x <= kMost; };
  return within(p.tok_s) && std::abs(p.least) <= kMost && std::abs(p.most) <= kMost &&
         (p.roofline == 0 || within(p.roofline));
}

// ---- HTML ----

std::string escaped(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"";
  constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
  std::string out;
  for (const char c : chat::printable(text)) {
    const size_t special = kSpecial.find(c);
    out += special == std::string_view::npos ? std::string(1, c) : kEntities[special];
  }
  return out;
}

// 1234567.8 is "1,234,568", small numbers keep a digit or two.
std::string grouped(double x) {
  if (x < 100) return fmt::format("{:.{}f}", x, x < 10 ? 2 : 1);
  std::string digits = fmt::format("{:.0f}", x);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
const char* color_of(size_t index) { return kColors[index % std::size(kColors)]; }

// Names and colours of series or runs.
template <class Named>
std::string legend_of(const std::vector<Named>& all) {
  std::string html = "<p class='legend'>";
  for (size_t i = 0; i < all.size(); ++i)
    html += fmt::format("<span><b style='background:{}'></b>{}</span> ", color_of(i), escaped(all[i].name));
  return html + "</p>";
}

struct Spot {
  double x = 0, y = 0, roofline = 0;
  std::string words;
};
struct Series {
  std::string name;
  std::vector<Spot> spots;  // by x
};

// A scale from numbers to a chart's pixels.
struct Axis {
  double first, last;  // in the scale's own units
  bool log;
  double from, to;  // pixels
  double at(double x) const {
    const double unit = log ? std::log2(x) : x;
    return from + (unit - first) / (last - first) * (to - from);
  }
};
Axis axis_of(double least, double most, bool log, double from, double to) {
  double first = log ? std::log2(least) : least, last = log ? std::log2(most) : most;
  if (last - first < 1e-9) first -= 0.5, last += 0.5;
  return {first, last, log, from, to};
}

constexpr double kWidth = 760, kHeight = 380, kLeft = 80, kRight = 740, kTop = 16, kBottom = 330;

std::vector<double> ticks_of_y(double least, double most) {
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(std::log10(least))),
            last = static_cast<int>(std::log10(most));
  for (int exponent = first; exponent <= last; ++exponent) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (const double y = step * std::pow(10, exponent); y >= least * 0.999 && y <= most * 1.001)
        ticks.push_back(y);
    }
  }
  return ticks;
}

std::string line_of(const Series& s, const Axis& x, const Axis& y, double Spot::*value, const char* color,
                    bool dashed) {
  std::string points;
  for (const Spot& spot : s.spots) {
    if (spot.*value > 0) points += fmt::format("{:.1f},{:.1f} ", x.at(spot.x), y.at(spot.*value));
  }
  return fmt::format("<polyline points='{}' fill='none' stroke='{}' stroke-width='{}'{}/>\n", points, color,
                     dashed ? 1 : 2, dashed ? " stroke-dasharray='5 4'" : "");
}

// Tokens a second over something, both for logarithmic eyes; the roofline is dashed.
std::string line_chart(const std::string& title, const std::string& x_label, const std::vector<Series>& all,
                       bool log_x) {
  double least = INFINITY, most = 0, low = INFINITY, high = 0;
  std::set<double> xs;
  for (const Series& s : all) {
    for (const Spot& spot : s.spots) {
      xs.insert(spot.x);
      low = std::min(low, spot.x), high = std::max(high, spot.x);
      least = std::min(least, spot.y), most = std::max({most, spot.y, spot.roofline});
    }
  }
  const Axis x = axis_of(low, high, log_x, kLeft, kRight - 20),
             y = axis_of(least / 1.2, most * 1.2, true, kBottom, kTop);
  std::string svg =
      fmt::format("<figure><figcaption>{}</figcaption><svg viewBox='0 0 {} {}' role='img' aria-label='{}'>\n",
                  escaped(title), kWidth, kHeight, escaped(title));
  for (const double tick : ticks_of_y(least / 1.2, most * 1.2))
    svg += fmt::format(
        "<line x1='{0}' x2='{1}' y1='{2:.1f}' y2='{2:.1f}' class='grid'/><text x='{3}' y='{4:.1f}' "
        "text-anchor='end'>{5}</text>\n",
        kLeft, kRight, y.at(tick), kLeft - 8, y.at(tick) + 4, grouped(tick));
  double last = -INFINITY;
  for (const double tick : xs) {
    if (x.at(tick) - last < 44) continue;  // labels would overlap
    last = x.at(tick);
    svg +=
        fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{:.0f}</text>\n", last, kBottom + 18, tick);
  }
  svg += fmt::format("<text x='{}' y='{}' text-anchor='middle'>{}</text>\n", (kLeft + kRight) / 2,
                     kHeight - 10, escaped(x_label));
  for (size_t i = 0; i < all.size(); ++i) {
    svg += line_of(all[i], x, y, &Spot::roofline, color_of(i), true);
    svg += line_of(all[i], x, y, &Spot::y, color_of(i), false);
    for (const Spot& spot : all[i].spots)
      svg += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='4' fill='{}'><title>{}</title></circle>\n",
                         x.at(spot.x), y.at(spot.y), color_of(i), escaped(spot.words));
  }
  return svg + "</svg>" + legend_of(all) + "</figure>\n";
}

struct Bar {
  std::string name;
  size_t run;
  double value;
};
std::string bar_chart(const std::string& title, const std::vector<Bar>& bars,
                      const std::vector<BenchRun>& runs) {
  constexpr double kRow = 24, kBarLeft = 260;
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  const double height = kRow * static_cast<double>(bars.size()) + 8;
  std::string svg =
      fmt::format("<figure><figcaption>{}</figcaption><svg viewBox='0 0 {} {}' role='img' aria-label='{}'>\n",
                  escaped(title), kWidth, height, escaped(title));
  for (size_t i = 0; i < bars.size(); ++i) {
    const double top = kRow * static_cast<double>(i) + 4,
                 width = (kRight - 100 - kBarLeft) * bars[i].value / most;
    svg += fmt::format(
        "<text x='{}' y='{:.1f}' text-anchor='end'>{}</text><rect x='{}' y='{:.1f}' width='{:.1f}' "
        "height='16' "
        "fill='{}'/><text x='{:.1f}' y='{:.1f}'>{}</text>\n",
        kBarLeft - 8, top + 13, escaped(bars[i].name), kBarLeft, top, width, color_of(bars[i].run),
        kBarLeft + width + 6, top + 13, grouped(bars[i].value));
  }
  svg += "</svg>";
  if (runs.size() > 1) svg += legend_of(runs);
  return svg + "</figure>\n";
}

// ---- what is drawn ----

std::string name_of(const BenchPoint& p) { return fmt::format("{}{}", p.prefill ? "pp" : "tg", p.tokens); }
std::string words_of(const BenchPoint& p) {
  const std::string share =
      p.roofline > 0 ? fmt::format(", {:.0f}% of the roofline", 100 * p.tok_s / p.roofline) : "";
  return fmt::format("{} at depth {}, batch {}: {} tok/s{}", name_of(p), p.depth, p.batch, grouped(p.tok_s),
                     share);
}

// Decoding by `x`, a line for each run and each value of `other`.
std::vector<Series> decoding_by(const std::vector<BenchRun>& runs, int BenchPoint::*x, int BenchPoint::*other,
                                const char* other_name) {
  std::vector<Series> all;
  for (const BenchRun& run : runs) {
    std::map<std::pair<int, int>, std::map<int, Spot>> lines;  // by value of `other` and tokens
    for (const BenchPoint& p : run.points) {
      if (!p.prefill)
        lines[{p.*other, p.tokens}][p.*x] = {static_cast<double>(p.*x), p.tok_s, p.roofline, words_of(p)};
    }
    for (const auto& [key, spots] : lines) {
      Series s{.name = fmt::format("{}tg{}, {} {}", runs.size() > 1 ? run.name + ": " : "", key.second,
                                   other_name, key.first),
               .spots = {}};
      for (const auto& [at, spot] : spots) s.spots.push_back(spot);
      all.push_back(std::move(s));
    }
  }
  return all;
}

bool is_line(const std::vector<Series>& all) {
  return std::ranges::any_of(all, [](const Series& s) { return s.spots.size() > 1; });
}

std::vector<Bar> bars_of(const std::vector<BenchRun>& runs, bool prefill) {
  std::map<std::tuple<int, int, int, size_t>, Bar> bars;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const BenchPoint& p : runs[i].points) {
      if (p.prefill == prefill)
        bars[{p.tokens, p.batch, p.depth, i}] = {
            fmt::format("{}, batch {}, depth {}", name_of(p), p.batch, p.depth), i, p.tok_s};
    }
  }
  std::vector<Bar> all;
  for (const auto& [key, bar] : bars) all.push_back(bar);
  return all;
}

std::string table_of(const std::vector<BenchRun>& runs) {
  std::string html =
      "<table><tr><th>run</th><th>test</th><th>depth</th><th>batch</th><th>tok/s</th><th>slowest - "
      "fastest</th>"
      "<th>share of roofline</th></tr>\n";
  for (const BenchRun& run : runs) {
    for (const BenchPoint& p : run.points)
      html += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} - {}</td><td>{}</td></tr>\n",
          escaped(run.name), name_of(p), p.depth, p.batch, grouped(p.tok_s), grouped(p.least),
          grouped(p.most),
          p.roofline > 0 ? fmt::format("{:.0f}%", 100 * p.tok_s / p.roofline) : std::string());
  }
  return html + "</table>\n";
}

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>moesaic bench</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 820px; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
svg { width: 100%; height: auto } svg text { font-size: 12px; fill: currentColor } .grid { stroke: #8884 }
figure { margin: 2em 0 } figcaption { font-weight: 600 } .legend span { margin-right: 1em; white-space: nowrap }
.legend b { display: inline-block; width: 12px; height: 12px; margin-right: 4px; border-radius: 2px }
table { border-collapse: collapse; width: 100% } th, td { text-align: right; padding: 2px 8px; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } }
</style></head><body>
)";

}  // namespace

Result<BenchRun> read_bench_run(std::string_view text, const std::string& file) {
  if (text.size() > kMostRunBytes) return invalid("{}: more than {} MiB", file, kMostRunBytes >> 20);
  const nlohmann::json lines = nlohmann::json::parse(text, nullptr, false);
  if (!lines.is_array() || lines.empty())
    return invalid("{}: expected what `moesaic bench -o json` or `llama-bench -o json` prints", file);
  BenchRun run{.name = name_of(lines[0], file), .points = {}};
  for (const nlohmann::json& line : lines) {
    if (!line.is_object()) return invalid("{}: a line is no object", file);
    const std::optional<BenchPoint> point = line.contains("avg_ts") ? llama_point(line) : own_point(line);
    if (!point || !is_sound(*point))
      return invalid("{}: line {} is no test of bench", file, run.points.size() + 1);
    run.points.push_back(*point);
  }
  return run;
}

std::string bench_page(const std::vector<BenchRun>& runs) {
  std::string html = kHead;
  html += "<h1>moesaic bench</h1>\n";
  for (const BenchRun& run : runs) html += fmt::format("<p>{}</p>\n", escaped(run.name));
  const auto by_batch = decoding_by(runs, &BenchPoint::batch, &BenchPoint::depth, "depth");
  const auto by_depth = decoding_by(runs, &BenchPoint::depth, &BenchPoint::batch, "batch");
  if (is_line(by_batch))
    html += line_chart("Decoding, tokens a second of all sequences (dashed: the roofline)", "sequences",
                       by_batch, true);
  if (is_line(by_depth))
    html += line_chart("Decoding at depth, tokens a second (dashed: the roofline)", "tokens in the KV cache",
                       by_depth, false);
  const auto decoding = bars_of(runs, false), prompts = bars_of(runs, true);
  if (!decoding.empty() && !is_line(by_batch) && !is_line(by_depth))
    html += bar_chart("Decoding, tokens a second", decoding, runs);
  if (!prompts.empty()) html += bar_chart("Prompts, tokens a second", prompts, runs);
  return html + table_of(runs) + "</body></html>\n";
}

}  // namespace moesaic::app
