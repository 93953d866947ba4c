// SPDX-License-Identifier: Apache-2.0
#include "backend/proto/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "backend/common/codec.h"
#include "backend/model/event.h"
#include "backend/model/ledger_audit.h"
#include "backend/model/listing.h"
#include "bulkhead/v1/event.pb.h"
#include "bulkhead/v1/listing.pb.h"
#include "bulkhead/v1/service.pb.h"
#include "tests/rpc/random_fields.h"

namespace bulkhead {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

std::string upper(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    return out;
}

/// "RankPhase" -> "RANK_PHASE_"
std::string prefix(const std::string& typeName) {
    std::string out;
    for (const char c : typeName) {
        if (c >= 'A' && c <= 'Z' && !out.empty()) out += '_';
        out += c;
    }
    return upper(out) + "_";
}

/// Walks a struct and a message descriptor side by side and notes every disagreement.
class Comparison {
  public:
    template <class T>
    static void compare(const Descriptor* message) {
        Comparison comparison(message);
        T value{};
        T::fields(value, comparison);
        EXPECT_EQ(comparison.seen_, static_cast<int>(message->field_count()))
            << message->full_name() << " has fields the struct does not";
    }

    template <class T>
    void operator()(std::string_view name, T& value) {
        if constexpr (IsVariant<T>::value) {
            const auto* oneof = message_->FindOneofByName(std::string(name));
            ASSERT_NE(oneof, nullptr) << message_->full_name() << "." << name;
            EXPECT_EQ(static_cast<size_t>(oneof->field_count()), std::variant_size_v<T>);
            variant<T>(std::make_index_sequence<std::variant_size_v<T>>());
        } else {
            const FieldDescriptor* f = find(name);
            if (f == nullptr) return;
            EXPECT_EQ(f->is_repeated(), IsVector<T>::value) << f->full_name();
            if constexpr (IsVector<T>::value) {
                kind<typename T::value_type>(f);
            } else if constexpr (IsOptional<T>::value) {
                EXPECT_TRUE(f->has_presence()) << f->full_name();
                kind<typename T::value_type>(f);
            } else {
                if constexpr (FieldScalar<T> || std::is_enum_v<T>) {
                    EXPECT_EQ(f->has_presence(), value != T{})
                        << f->full_name() << ": presence is for defaults other than zero";
                }
                kind<T>(f);
            }
        }
    }

  private:
    explicit Comparison(const Descriptor* message) : message_(message) {}

    const FieldDescriptor* find(std::string_view name) {
        const FieldDescriptor* f = message_->FindFieldByName(std::string(name));
        EXPECT_NE(f, nullptr) << message_->full_name() << " lacks " << name;
        ++seen_;
        return f;
    }

    template <class V, size_t... I>
    void variant(std::index_sequence<I...>) {
        (kind<std::variant_alternative_t<I, V>>(find(std::variant_alternative_t<I, V>::kType)),
         ...);
    }

    template <class T>
    void kind(const FieldDescriptor* f) {
        if (f == nullptr) return;
        if constexpr (std::same_as<T, bool>) {
            EXPECT_EQ(f->type(), FieldDescriptor::TYPE_BOOL) << f->full_name();
        } else if constexpr (std::same_as<T, int32_t>) {
            EXPECT_EQ(f->type(), FieldDescriptor::TYPE_INT32) << f->full_name();
        } else if constexpr (std::same_as<T, int64_t>) {
            EXPECT_EQ(f->type(), FieldDescriptor::TYPE_INT64) << f->full_name();
        } else if constexpr (std::same_as<T, uint32_t>) {
            EXPECT_EQ(f->type(), FieldDescriptor::TYPE_UINT32) << f->full_name();
        } else if constexpr (std::same_as<T, uint64_t>) {
            EXPECT_EQ(f->type(), FieldDescriptor::TYPE_UINT64) << f->full_name();
        } else if constexpr (std::same_as<T, double>) {
            EXPECT_EQ(f->type(), FieldDescriptor::TYPE_DOUBLE) << f->full_name();
        } else if constexpr (std::same_as<T, std::string>) {
            EXPECT_EQ(f->type(), FieldDescriptor::TYPE_STRING) << f->full_name();
        } else if constexpr (std::is_enum_v<T>) {
            ASSERT_EQ(f->type(), FieldDescriptor::TYPE_ENUM) << f->full_name();
            names<T>(f->enum_type());
        } else {
            ASSERT_EQ(f->type(), FieldDescriptor::TYPE_MESSAGE) << f->full_name();
            compare<T>(f->message_type());
        }
    }

    template <class E>
    static void names(const google::protobuf::EnumDescriptor* type) {
        const auto& ours = EnumNames<E>::kNames;
        ASSERT_EQ(static_cast<size_t>(type->value_count()), ours.size()) << type->full_name();
        for (size_t i = 0; i < ours.size(); ++i) {
            const auto* value = type->FindValueByNumber(static_cast<int>(i));
            ASSERT_NE(value, nullptr) << type->full_name() << " " << i;
            EXPECT_EQ(value->name(), prefix(type->name()) + upper(ours[i]));
        }
    }

    const Descriptor* message_;
    int seen_ = 0;
};

template <class T, class M>
void expectRoundTrip(uint32_t seed) {
    T value{};
    testing::RandomFields random(seed);
    random.fill(value);
    M message;
    proto::toMessage(value, message);
    M travelled;
    ASSERT_TRUE(travelled.ParseFromString(message.SerializeAsString()));
    const auto back = proto::fromMessage<T>(travelled);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(encode(*back), encode(value)) << message.DebugString();
}

TEST(ConvertTest, EveryNameTypeEnumValueAndPresenceAgrees) {
    Comparison::compare<model::Event>(v1::Event::descriptor());
    Comparison::compare<model::JobSpec>(v1::JobSpec::descriptor());
    Comparison::compare<model::FaultSpec>(v1::FaultSpec::descriptor());
    Comparison::compare<model::Action>(v1::Action::descriptor());
    Comparison::compare<model::Preflight>(v1::Preflight::descriptor());
    Comparison::compare<model::JobInfo>(v1::JobInfo::descriptor());
    Comparison::compare<model::RunInfo>(v1::RunInfo::descriptor());
    Comparison::compare<model::EventQuery>(v1::EventQuery::descriptor());
    Comparison::compare<model::EventPage>(v1::EventPage::descriptor());
    Comparison::compare<model::ReplayPosition>(v1::ReplayPosition::descriptor());
    Comparison::compare<model::ReplayControl>(v1::ReplayControl::descriptor());
    Comparison::compare<model::ServerInfo>(v1::ServerInfo::descriptor());
}

TEST(ConvertTest, EveryEventBodySurvivesTheWayThere) {
    for (size_t type = 0; type < std::variant_size_v<model::EventBody>; ++type) {
        for (uint32_t seed = 0; seed < 20; ++seed) {
            model::Event event;
            testing::RandomFields random(seed);
            random.fill(event);
            withAlternative<model::EventBody>(
                type, [&]<size_t I>() { random.fill(event.body.emplace<I>()); });
            v1::Event message;
            proto::toMessage(event, message);
            v1::Event travelled;
            ASSERT_TRUE(travelled.ParseFromString(message.SerializeAsString()));
            const auto back = proto::fromMessage<model::Event>(travelled);
            ASSERT_TRUE(back.ok()) << back.status();
            EXPECT_EQ(encode(*back), encode(event)) << message.DebugString();
        }
    }
}

TEST(ConvertTest, RequestsAndListsSurviveTheWayThere) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
        expectRoundTrip<model::JobSpec, v1::JobSpec>(seed);
        expectRoundTrip<model::FaultSpec, v1::FaultSpec>(seed);
        expectRoundTrip<model::Action, v1::Action>(seed);
        expectRoundTrip<model::Preflight, v1::Preflight>(seed);
        expectRoundTrip<model::RunInfo, v1::RunInfo>(seed);
        expectRoundTrip<model::EventQuery, v1::EventQuery>(seed);
        expectRoundTrip<model::EventPage, v1::EventPage>(seed);
        expectRoundTrip<model::ReplayControl, v1::ReplayControl>(seed);
    }
}

TEST(ConvertTest, FieldsLeftOutKeepTheModelsDefaults) {
    v1::Action action;
    action.set_kind(v1::ACTION_KIND_DRAIN);
    EXPECT_EQ(proto::fromMessage<model::Action>(action)->replica, -1);
    EXPECT_EQ(encode(*proto::fromMessage<model::JobSpec>(v1::JobSpec())), encode(model::JobSpec()));
}

TEST(ConvertTest, AnEnumValueNobodyNamedIsRefusedByName) {
    v1::Action action;
    action.set_kind(static_cast<v1::ActionKind>(99));
    const auto back = proto::fromMessage<model::Action>(action);
    ASSERT_EQ(back.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(back.status().message()), ::testing::HasSubstr("Action.kind"));
    EXPECT_THAT(std::string(back.status().message()), ::testing::HasSubstr("99"));
}

TEST(ConvertTest, AnEventWithoutBodyIsRefused) {
    EXPECT_EQ(proto::fromMessage<model::Event>(v1::Event()).status().code(),
              absl::StatusCode::kInvalidArgument);
}

void noQtMacros(const google::protobuf::FileDescriptor* file, std::set<std::string>& seen) {
    if (!seen.insert(file->name()).second) return;
    for (int i = 0; i < file->dependency_count(); ++i) noQtMacros(file->dependency(i), seen);
    for (int i = 0; i < file->message_type_count(); ++i) {
        const Descriptor* message = file->message_type(i);
        for (int j = 0; j < message->field_count(); ++j)
            EXPECT_THAT(message->field(j)->name(),
                        ::testing::Not(::testing::AnyOf("signals", "slots", "emit", "foreach")))
                << message->full_name();
    }
}

TEST(ConvertTest, NoFieldIsAMacroOfQt) {
    std::set<std::string> seen;
    noQtMacros(v1::StartJobRequest::descriptor()->file(), seen);
    EXPECT_GE(seen.size(), 6u);
}

TEST(Convert, TextThatIsNoUtf8ComesWholeAndHidesNothingBehindIt) {
    model::LedgerReport report;
    report.broken = 2;
    report.link = "\xff";
    report.findings = {{3, "a link of \xff\xfe bytes", "compare"}};
    v1::LedgerReport sent;
    proto::toMessage(report, sent);
    v1::LedgerReport read;
    ASSERT_TRUE(read.ParseFromString(sent.SerializeAsString()));
    EXPECT_EQ(read.broken(), 2u);
    EXPECT_EQ(read.link(), "\\xff");
    EXPECT_EQ(read.findings(0).what(), "a link of \\xff\\xfe bytes");
    EXPECT_EQ(read.findings(0).remedy(), "compare");
}

}  // namespace
}  // namespace bulkhead
