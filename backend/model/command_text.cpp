// SPDX-License-Identifier: Apache-2.0
#include "backend/model/command_text.h"

#include <algorithm>
#include <array>
#include <span>

#include "backend/model/expert_rules.h"
#include "backend/model/names.h"
#include "backend/model/parse_number.h"
#include "backend/model/rank_name.h"

namespace bulkhead::model {
namespace {

enum Needs : unsigned {
    kNothing = 0,
    kReplica = 1,
    kRank = 2,  ///< with kReplica: either
    kNode = 4,
    kFor = 8,
    kFactor = 16,
    kBy = 32,
};

struct FaultVerb {
    std::string_view name;
    FaultKind kind;
    unsigned takes;
    unsigned needs;  ///< of these, all but one of the targets
};

constexpr std::array<FaultVerb, 11> kFaultVerbs = {{
    {"kill", FaultKind::kKillReplica, kReplica, kReplica},
    {"kill", FaultKind::kKillRank, kRank, kRank},
    {"hang", FaultKind::kHang, kReplica | kRank | kFor, kReplica | kRank},
    {"slow", FaultKind::kSlow, kReplica | kRank | kFor | kFactor, kReplica | kRank | kFactor},
    {"cut", FaultKind::kCutNetwork, kReplica | kFor, kReplica},
    {"delay", FaultKind::kDelayNetwork, kReplica | kFor | kBy, kReplica | kBy},
    {"flip-gradient", FaultKind::kFlipGradient, kReplica | kRank, kReplica | kRank},
    {"nan", FaultKind::kNanGradient, kReplica | kRank, kReplica | kRank},
    {"flip-parameter", FaultKind::kFlipParameter, kReplica | kRank, kReplica | kRank},
    {"fill-disk", FaultKind::kFillDisk, kNode | kFor, kNode},
    {"kill-node", FaultKind::kKillNode, kNode, kNode},
}};

struct ActionVerb {
    std::string_view name;
    ActionKind kind;
    unsigned needs;
};

constexpr std::array<ActionVerb, 16> kActionVerbs = {{
    {"drain", ActionKind::kDrain, kReplica},
    {"cordon", ActionKind::kCordon, kNode},
    {"uncordon", ActionKind::kUncordon, kNode},
    {"hold-rejoin", ActionKind::kHoldRejoin, kReplica},
    {"release-rejoin", ActionKind::kReleaseRejoin, kReplica},
    {"restart", ActionKind::kRestartReplica, kReplica},
    {"pause", ActionKind::kPause, kNothing},
    {"resume", ActionKind::kResume, kNothing},
    {"checkpoint", ActionKind::kCheckpoint, kNothing},
    {"stop", ActionKind::kStop, kNothing},
    {"set-policy", ActionKind::kSetPolicy, kNothing},
    {"layout", ActionKind::kChangeLayout, kNothing},
    {"capture-routing", ActionKind::kCaptureRouting, kNothing},
    {"rule-experts", ActionKind::kRuleExperts, kNothing},
    {"dismiss-plan", ActionKind::kDismissPlan, kNothing},
    {"stop-now", ActionKind::kStopNow, kNothing},
}};

constexpr std::array<std::string_view, 4> kPhases = {"compute", "exchange", "vote", "apply"};

template <class... Parts>
absl::Status bad(const Parts&... parts) {
    return absl::InvalidArgumentError(concat(parts...));
}

template <class Verbs>
std::vector<std::string_view> namesOf(const Verbs& verbs) {
    std::vector<std::string_view> names;
    for (const auto& verb : verbs)
        if (std::find(names.begin(), names.end(), verb.name) == names.end())
            names.push_back(verb.name);
    return names;
}

struct Argument {
    std::string_view key;
    std::string_view value;
};

/// verb [":" key "=" value {"," ...}] ["@" when]
struct Phrase {
    std::string_view verb;
    std::vector<Argument> arguments;
    std::optional<std::string_view> when;
};

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

absl::StatusOr<Phrase> split(std::string_view text) {
    constexpr size_t kLongest = 4096;
    if (text.size() > kLongest) return bad("too long: expected one word such as kill:replica=2");
    Phrase phrase;
    text = trimmed(text);
    if (const size_t at = text.find('@'); at != std::string_view::npos) {
        phrase.when = text.substr(at + 1);
        text = text.substr(0, at);
    }
    const size_t colon = text.find(':');
    phrase.verb = text.substr(0, colon);
    if (colon == std::string_view::npos) return phrase;
    text.remove_prefix(colon + 1);
    while (true) {
        const size_t comma = text.find(',');
        const std::string_view item = text.substr(0, comma);
        const size_t equals = item.find('=');
        if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size())
            return bad("\"", shortened(item, 60), "\": expected key=value");
        phrase.arguments.push_back({item.substr(0, equals), item.substr(equals + 1)});
        if (comma == std::string_view::npos) return phrase;
        text.remove_prefix(comma + 1);
    }
}

absl::Status badValue(const Argument& a, std::string_view expected) {
    return bad(a.key, "=", shortened(a.value, 60), ": expected ", expected);
}

absl::StatusOr<uint64_t> durationOf(const Argument& a) {
    const std::optional<uint64_t> ms = parseDuration(a.value);
    if (!ms) return badValue(a, "a duration such as 500ms, 3s or 2m");
    return *ms;
}

absl::StatusOr<int32_t> replicaOf(const Argument& a) {
    const std::optional<int32_t> replica = parseReplica(a.value);
    if (!replica) return badValue(a, "the number of a replica, from 0");
    return *replica;
}

/// Files of older versions have a rank as "2.1".
absl::Status takeRank(const Argument& a, FaultSpec& fault) {
    std::string name(a.value);
    if (const size_t dot = name.find('.'); dot != std::string::npos)
        name = concat("r", name.replace(dot, 1, "s"));
    const std::optional<RankId> rank = parseRank(name);
    if (!rank) return badValue(a, "a rank, such as r2s1");
    fault.replica = rank->replica;
    fault.shard = rank->shard;
    return absl::OkStatus();
}

absl::Status takeArgument(const Argument& a, FaultSpec& fault) {
    if (a.key == "rank") return takeRank(a, fault);
    if (a.key == "replica") {
        const absl::StatusOr<int32_t> replica = replicaOf(a);
        if (replica.ok()) fault.replica = *replica;
        return replica.status();
    }
    if (a.key == "node") {
        fault.node = a.value;
        return absl::OkStatus();
    }
    if (a.key == "factor") {
        const std::optional<double> factor = parseNumber<double>(a.value);
        if (!factor) return badValue(a, "a number above 1, such as 4");
        fault.factor = *factor;
        return absl::OkStatus();
    }
    const absl::StatusOr<uint64_t> ms = durationOf(a);
    if (ms.ok()) (a.key == "by" ? fault.delayMs : fault.durationMs) = *ms;
    return ms.status();
}

unsigned flagOf(std::string_view key) {
    if (key == "replica") return kReplica;
    if (key == "rank") return kRank;
    if (key == "node") return kNode;
    if (key == "for") return kFor;
    if (key == "factor") return kFactor;
    return key == "by" ? kBy : kNothing;
}

std::vector<std::string_view> keysOf(unsigned takes) {
    std::vector<std::string_view> keys;
    for (std::string_view key : {"replica", "rank", "node", "for", "factor", "by"})
        if (takes & flagOf(key)) keys.push_back(key);
    return keys;
}

absl::Status takeWhen(std::string_view when, FaultSpec& fault) {
    constexpr std::string_view kExpected = ": expected step=N or step=N/phase";
    constexpr std::string_view kKey = "step=";
    if (when.substr(0, kKey.size()) != kKey) return bad("@", shortened(when, 60), kExpected);
    when.remove_prefix(kKey.size());
    const size_t slash = when.find('/');
    const std::optional<uint64_t> step = parseNumber<uint64_t>(when.substr(0, slash));
    if (!step) return bad("@step=", shortened(when, 60), kExpected);
    fault.atStep = *step;
    if (slash == std::string_view::npos) return absl::OkStatus();
    const std::string_view phase = when.substr(slash + 1);
    if (std::find(kPhases.begin(), kPhases.end(), phase) == kPhases.end())
        return bad("phase \"", shortened(phase, 60), "\": expected one of ", joined(kPhases));
    fault.atPhase = phase;
    return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> shardsOf(const Argument& a) {
    std::vector<int32_t> shards;
    for (std::string_view rest = a.value;;) {
        const size_t dot = rest.find('.');
        const std::optional<int32_t> shard = parseNumber<int32_t>(rest.substr(0, dot));
        if (!shard || *shard < 0) return badValue(a, "shard numbers such as 0.1.1.0");
        shards.push_back(*shard);
        if (dot == std::string_view::npos) return shards;
        rest.remove_prefix(dot + 1);
    }
}

const FaultVerb& verbOf(FaultKind kind) {
    return *std::find_if(kFaultVerbs.begin(), kFaultVerbs.end(),
                         [&](const FaultVerb& v) { return v.kind == kind; });
}

std::string durationText(uint64_t ms) {
    if (ms % 60'000 == 0) return concat(ms / 60'000, "m");
    if (ms % 1000 == 0) return concat(ms / 1000, "s");
    return concat(ms, "ms");
}

bool isWord(std::string_view node) {
    return !node.empty() && node.find_first_of(",=@: \t\n") == std::string_view::npos;
}

absl::Status checkWhen(const FaultSpec& f) {
    if (f.atPhase.empty() || std::find(kPhases.begin(), kPhases.end(), f.atPhase) != kPhases.end())
        return absl::OkStatus();
    return bad("phase \"", shortened(f.atPhase, 60), "\": expected one of ", joined(kPhases));
}

}  // namespace

std::optional<uint64_t> parseDuration(std::string_view text) {
    const size_t unitAt = text.find_first_not_of("0123456789.");
    if (unitAt == std::string_view::npos) return std::nullopt;
    const std::string_view unit = text.substr(unitAt);
    const double scale = unit == "ms" ? 1 : unit == "s" ? 1000 : unit == "m" ? 60'000 : 0;
    const std::optional<double> number = parseNumber<double>(text.substr(0, unitAt));
    constexpr double kLongestMs = 1e10;
    if (!number || scale == 0 || *number * scale < 1 || *number * scale > kLongestMs)
        return std::nullopt;
    return static_cast<uint64_t>(std::llround(*number * scale));
}

absl::Status checkFault(const FaultSpec& f) {
    if (static_cast<size_t>(f.kind) >= EnumNames<FaultKind>::kNames.size())
        return bad("the kind of fault is unknown");
    const FaultVerb& verb = verbOf(f.kind);
    const bool wantsReplica = verb.needs & (kReplica | kRank);
    if (wantsReplica && f.replica < 0)
        return bad(verb.name, ": expected ", verb.takes == kRank ? "rank=R.S" : "replica=N");
    if (!wantsReplica && (f.replica >= 0 || f.shard >= 0))
        return bad(verb.name, ": takes a node, not a replica");
    if (verb.kind == FaultKind::kKillRank && f.shard < 0) return bad("kill: expected rank=R.S");
    if (!(verb.takes & kRank) && f.shard >= 0)
        return bad(verb.name, ": takes a whole replica, not one rank");
    if ((verb.needs & kNode) && !isWord(f.node)) return bad(verb.name, ": expected node=NAME");
    if (!(verb.takes & kNode) && !f.node.empty()) return bad(verb.name, ": takes no node");
    if (!(verb.takes & kFor) && f.durationMs != 0)
        return bad(verb.name, ": takes no duration (for=)");
    if ((verb.needs & kFactor) && !(f.factor > 1 && std::isfinite(f.factor)))
        return bad(verb.name, ": expected factor= a number above 1, such as 4");
    if (!(verb.takes & kFactor) && f.factor != 0) return bad(verb.name, ": takes no factor");
    if ((verb.needs & kBy) && f.delayMs == 0)
        return bad(verb.name, ": expected by= a duration such as 20ms");
    if (!(verb.takes & kBy) && f.delayMs != 0) return bad(verb.name, ": takes no delay (by=)");
    return checkWhen(f);
}

absl::StatusOr<FaultSpec> parseFault(std::string_view text) {
    const absl::StatusOr<Phrase> phrase = split(text);
    if (!phrase.ok()) return phrase.status();
    const std::vector<std::string_view> names = namesOf(kFaultVerbs);
    if (std::find(names.begin(), names.end(), phrase->verb) == names.end())
        return bad("unknown fault \"", shortened(phrase->verb, 60), "\"",
                   hintFor(phrase->verb, names));
    const bool namesRank = std::any_of(phrase->arguments.begin(), phrase->arguments.end(),
                                       [](const Argument& a) { return a.key == "rank"; });
    FaultSpec fault;
    unsigned takes = 0;
    for (const FaultVerb& verb : kFaultVerbs) {
        if (verb.name != phrase->verb) continue;
        const bool isFirst = takes == 0;
        takes |= verb.takes;
        if (isFirst || (namesRank && (verb.takes & kRank))) fault.kind = verb.kind;
    }
    unsigned given = 0;
    for (const Argument& a : phrase->arguments) {
        const unsigned flag = flagOf(a.key);
        if (!(flag & takes))
            return bad(phrase->verb, ": unknown key \"", shortened(a.key, 60), "\"",
                       hintFor(a.key, keysOf(takes)));
        const unsigned clash = flag & (kReplica | kRank) ? kReplica | kRank : flag;
        if (given & clash) return bad(phrase->verb, ": ", a.key, "= is one target too many");
        given |= flag;
        if (absl::Status s = takeArgument(a, fault); !s.ok()) return s;
    }
    if (phrase->when)
        if (absl::Status s = takeWhen(*phrase->when, fault); !s.ok()) return s;
    if (!(given & (kReplica | kRank | kNode)))
        return bad(phrase->verb, ": expected a target: ",
                   joined(keysOf(takes & (kReplica | kRank | kNode)), "= or "), "=");
    if (absl::Status s = checkFault(fault); !s.ok()) return s;
    return fault;
}

std::string formatFault(const FaultSpec& f) {
    const FaultVerb& verb = verbOf(f.kind);
    std::string out = concat(verb.name, ":");
    if (verb.takes & kNode)
        out += concat("node=", f.node);
    else if (f.shard >= 0)
        out += concat("rank=", rankName({f.replica, f.shard}));
    else
        out += concat("replica=", f.replica);
    if (f.factor != 0) out += concat(",factor=", shortest(f.factor));
    if (f.delayMs != 0) out += concat(",by=", durationText(f.delayMs));
    if (f.durationMs != 0) out += concat(",for=", durationText(f.durationMs));
    if (f.atStep != 0 || !f.atPhase.empty()) out += concat("@step=", f.atStep);
    if (!f.atPhase.empty()) out += concat("/", f.atPhase);
    return out;
}

absl::Status checkAction(const Action& a) {
    if (static_cast<size_t>(a.kind) >= kActionVerbs.size()) return bad("the action is unknown");
    const ActionVerb& verb = kActionVerbs[static_cast<size_t>(a.kind)];
    const bool wantsReplica = verb.needs == kReplica;
    const bool wantsNode = verb.needs == kNode;
    if (wantsReplica != (a.replica >= 0))
        return bad(verb.name, wantsReplica ? ": expected replica=N" : ": takes no replica");
    if (wantsNode && !isWord(a.node)) return bad(verb.name, ": expected node=NAME");
    if (!wantsNode && !a.node.empty()) return bad(verb.name, ": takes no node");
    if (a.kind == ActionKind::kSetPolicy) return withPolicy(Policies{}, a.policy, a.value).status();
    if (!a.policy.empty() || !a.value.empty()) return bad(verb.name, ": takes no policy");
    if ((a.kind == ActionKind::kChangeLayout) == a.expertShard.empty())
        return bad(verb.name, a.expertShard.empty()
                                  ? ": expected shards= one number for each expert"
                                  : ": takes no experts");
    if ((a.kind == ActionKind::kCaptureRouting) == (a.tokens == 0))
        return bad(verb.name,
                   a.tokens == 0 ? ": expected tokens= a number above 0" : ": takes no tokens");
    if (!a.rules.empty() && rulesOf(a) == nullptr) return bad(verb.name, ": takes no rules");
    if ((a.kind == ActionKind::kDismissPlan) == (a.step == 0))
        return bad(verb.name,
                   a.step == 0 ? ": expected step= the step of the proposal" : ": takes no step");
    return absl::OkStatus();
}

absl::StatusOr<Action> parseAction(std::string_view text) {
    const absl::StatusOr<Phrase> phrase = split(text);
    if (!phrase.ok()) return phrase.status();
    const auto verb = std::find_if(kActionVerbs.begin(), kActionVerbs.end(),
                                   [&](const ActionVerb& v) { return v.name == phrase->verb; });
    if (verb == kActionVerbs.end())
        return bad("unknown action \"", shortened(phrase->verb, 60), "\"",
                   hintFor(phrase->verb, namesOf(kActionVerbs)));
    if (phrase->when) return bad(verb->name, ": an action takes no @step; it happens at once");
    Action action;
    action.kind = verb->kind;
    if (phrase->arguments.size() > 1 && action.kind != ActionKind::kRuleExperts)
        return bad(verb->name, ": expected one key=value");
    for (const Argument& a : phrase->arguments) {
        if (action.kind == ActionKind::kSetPolicy) {
            action.policy = a.key;
            action.value = a.value;
        } else if (a.key == "node" && verb->needs == kNode) {
            action.node = a.value;
        } else if (a.key == "shards" && action.kind == ActionKind::kChangeLayout) {
            absl::StatusOr<std::vector<int32_t>> shards = shardsOf(a);
            if (!shards.ok()) return shards.status();
            action.expertShard = *std::move(shards);
        } else if (a.key == "tokens" && action.kind == ActionKind::kCaptureRouting) {
            const std::optional<uint64_t> tokens = parseNumber<uint64_t>(a.value);
            if (!tokens) return badValue(a, "a number of tokens");
            action.tokens = *tokens;
        } else if (a.key == "step" && action.kind == ActionKind::kDismissPlan) {
            const std::optional<uint64_t> step = parseNumber<uint64_t>(a.value);
            if (!step) return badValue(a, "the step of the proposal");
            action.step = *step;
        } else if ((a.key == "pin" || a.key == "forbid") &&
                   action.kind == ActionKind::kRuleExperts) {
            auto rule = parseRule(a.value, a.key == "pin");
            if (!rule.ok()) return rule.status();
            action.rules.push_back(*rule);
        } else if (a.key == "replica" && verb->needs == kReplica) {
            const absl::StatusOr<int32_t> replica = replicaOf(a);
            if (!replica.ok()) return replica.status();
            action.replica = *replica;
        } else {
            return bad(verb->name, ": unknown key \"", shortened(a.key, 60), "\"",
                       verb->needs == kNothing ? std::string("; it takes none")
                                               : hintFor(a.key, keysOf(verb->needs)));
        }
    }
    if (action.kind == ActionKind::kSetPolicy && phrase->arguments.empty())
        return bad("set-policy: expected a policy and its value, such as lr=linear");
    if (absl::Status s = checkAction(action); !s.ok()) return s;
    return action;
}

std::string formatAction(const Action& a) {
    const auto index = static_cast<size_t>(a.kind);
    if (index >= kActionVerbs.size()) return "?";
    const ActionVerb& verb = kActionVerbs[index];
    if (a.kind == ActionKind::kSetPolicy) return concat(verb.name, ":", a.policy, "=", a.value);
    if (a.kind == ActionKind::kChangeLayout) {
        std::string shards;
        for (const int32_t shard : a.expertShard)
            shards += concat(shards.empty() ? "" : ".", shard);
        return concat(verb.name, ":shards=", shards);
    }
    if (a.kind == ActionKind::kCaptureRouting) return concat(verb.name, ":tokens=", a.tokens);
    if (a.kind == ActionKind::kDismissPlan) return concat(verb.name, ":step=", a.step);
    if (a.kind == ActionKind::kRuleExperts) {
        std::string rules;
        for (const ExpertRule& rule : a.rules)
            rules +=
                concat(rules.empty() ? ":" : ",", rule.pins ? "pin=" : "forbid=", formatRule(rule));
        return concat(verb.name, rules);
    }
    if (verb.needs == kReplica) return concat(verb.name, ":replica=", a.replica);
    if (verb.needs == kNode) return concat(verb.name, ":node=", a.node);
    return std::string(verb.name);
}

}  // namespace bulkhead::model
