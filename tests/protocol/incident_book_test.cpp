// SPDX-License-Identifier: Apache-2.0
// The cost of a loss in the incident book: idle time by phase, and each replica counted once.
#include "backend/runtime/protocol/incident_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace bulkhead::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = IncidentPhaseKind;

class IncidentBookTest : public ::testing::Test {
  protected:
    /// The phases that f reports: incident, kind, begin and end in milliseconds.
    using Told = std::tuple<uint64_t, Kind, MonoNs, MonoNs>;
    template <class F>
    std::vector<Told> phases(F&& f) {
        out.clear();
        f();
        std::vector<Told> told;
        for (const Fact& x : out)
            if (const auto* p = std::get_if<fact::IncidentPhase>(&x))
                told.emplace_back(p->incident, p->phase, p->begin / kMillisecond,
                                  p->end / kMillisecond);
        return told;
    }
    static MonoNs at(MonoNs ms) { return ms * kMillisecond; }
    /// Seen at 9 s, told at 9.5 s, decided at 10 s.
    std::vector<Told> lose(int32_t replica, bool contributed, size_t survivors = 3) {
        return phases([&] {
            book.open(at(10'000), replica, 4, 7, EvidenceKind::kTransportReset, "lost", at(9'000),
                      at(9'500), contributed, survivors, out);
        });
    }
    std::vector<Told> reformed(MonoNs ms, const std::vector<int32_t>& lost, uint64_t samples) {
        return phases([&] { book.reformed(at(ms), lost, samples, out); });
    }
    std::vector<Told> committed(MonoNs ms, double exchangeMs = 300) {
        return phases([&] { book.committed(at(ms), exchangeMs, out); });
    }
    std::vector<Told> phase(MonoNs ms, int32_t replica, Kind kind) {
        return phases([&] { book.phase(at(ms), replica, kind, out); });
    }
    std::vector<Told> close(MonoNs ms, int32_t replica, bool rejoined) {
        return phases([&] { book.close(at(ms), replica, rejoined, "over", out); });
    }
    fact::IncidentClosed closed() const { return std::get<fact::IncidentClosed>(out.back()); }

    IncidentBook book;
    std::vector<Fact> out;
};

TEST_F(IncidentBookTest, TheSurvivorsSideAndTheReplicasOwnFollowWithoutAGap) {
    EXPECT_THAT(lose(2, true), ElementsAre(Told(1, Kind::kDetect, 9'000, 9'500),
                                           Told(1, Kind::kDecide, 9'500, 10'000)));
    const auto opened = std::get<fact::IncidentOpened>(out.front());
    EXPECT_EQ(std::tuple(opened.incident, opened.replica, opened.incarnation, opened.step),
              std::tuple(1u, 2, 4u, 7u));
    EXPECT_EQ(opened.cause, EvidenceKind::kTransportReset);
    EXPECT_EQ(opened.title, "lost");
    EXPECT_TRUE(book.isOpen(2));
    EXPECT_THAT(reformed(10'200, {2, 9}, 8), ElementsAre(Told(1, Kind::kReform, 10'000, 10'200)));
    EXPECT_THAT(reformed(10'400, {2}, 8), IsEmpty()) << "it was lost once";
    EXPECT_THAT(committed(11'000), ElementsAre(Told(1, Kind::kReexchange, 10'700, 11'000)))
        << "the exchange took the last 300 ms";
    EXPECT_THAT(committed(12'000), IsEmpty());
    EXPECT_THAT(phase(12'000, 2, Kind::kRestart), IsEmpty()) << "it is in that already";
    EXPECT_THAT(phase(12'500, 2, Kind::kInit),
                ElementsAre(Told(1, Kind::kRestart, 10'000, 12'500)));
    EXPECT_THAT(phase(12'700, 2, Kind::kInit), IsEmpty());
    EXPECT_THAT(phase(13'000, 2, Kind::kFetch), ElementsAre(Told(1, Kind::kInit, 12'500, 13'000)));
    EXPECT_THAT(phase(13'000, 5, Kind::kFetch), IsEmpty()) << "nothing happened to r5";
    EXPECT_THAT(close(15'000, 2, true), ElementsAre(Told(1, Kind::kFetch, 13'000, 15'000)));
    EXPECT_EQ(closed().incident, 1u);
    EXPECT_EQ(closed().survivorStallMs, 1'200) << "from the symptom to the new quorum";
    EXPECT_EQ(closed().rejoinMs, 6'000);
    EXPECT_DOUBLE_EQ(closed().replicaSeconds, 6 + 3 * 1.2);
    EXPECT_EQ(closed().samplesRedone, 8u);
    EXPECT_EQ(closed().outcome, "over");
    EXPECT_FALSE(book.isOpen(2));
    EXPECT_THAT(close(16'000, 2, true), IsEmpty());
    EXPECT_THAT(out, IsEmpty());
}

TEST_F(IncidentBookTest, AnExchangeDoesNotBeginBeforeItsQuorum) {
    lose(2, true);
    reformed(10'900, {2}, 8);
    EXPECT_THAT(committed(11'000, 300), ElementsAre(Told(1, Kind::kReexchange, 10'900, 11'000)));
}

TEST_F(IncidentBookTest, WhereTheSumWasCompleteTheCommitIsTheNewBeginning) {
    lose(2, true);
    EXPECT_THAT(committed(10'300), ElementsAre(Told(1, Kind::kReform, 10'000, 10'300)));
    EXPECT_THAT(committed(10'600), IsEmpty());
    EXPECT_THAT(reformed(10'700, {2}, 8), IsEmpty()) << "nobody waits any more";
    close(11'000, 2, false);
    EXPECT_EQ(closed().survivorStallMs, 1'300);
    EXPECT_EQ(closed().rejoinMs, 0) << "it is not back";
    EXPECT_EQ(closed().samplesRedone, 0u);
}

TEST_F(IncidentBookTest, WhoDidNotContributeStallsNobody) {
    lose(2, false);
    EXPECT_THAT(reformed(10'200, {2}, 8), IsEmpty());
    EXPECT_THAT(committed(10'300), IsEmpty());
    close(11'000, 2, true);
    EXPECT_EQ(closed().survivorStallMs, 0);
    EXPECT_EQ(closed().samplesRedone, 0u);
    EXPECT_DOUBLE_EQ(closed().replicaSeconds, 2);
}

TEST_F(IncidentBookTest, SamplesOfTwoWhoGoTogetherAreCountedOnce) {
    lose(1, true);
    lose(2, true);
    EXPECT_THAT(reformed(10'200, {1, 2}, 8), ElementsAre(Told(1, Kind::kReform, 10'000, 10'200),
                                                         Told(2, Kind::kReform, 10'000, 10'200)));
    uint64_t samples = 0;
    for (const int32_t r : {1, 2}) {
        close(11'000, r, true);
        samples += closed().samplesRedone;
    }
    EXPECT_EQ(samples, 8u);
}

TEST_F(IncidentBookTest, WhoIsLostAgainBeginsAnewAndWhatRanIsEnded) {
    lose(2, true);
    EXPECT_THAT(lose(2, false), ElementsAre(Told(1, Kind::kRestart, 10'000, 10'000),
                                            Told(2, Kind::kDetect, 9'000, 9'500),
                                            Told(2, Kind::kDecide, 9'500, 10'000)));
    const auto first = std::get<fact::IncidentClosed>(out[1]);
    EXPECT_EQ(first.incident, 1u);
    EXPECT_EQ(first.outcome, "lost again");
    EXPECT_EQ(first.rejoinMs, 0);
}

TEST_F(IncidentBookTest, ASymptomIsNeverYoungerThanTheDecision) {
    book.open(at(10'000), 2, 4, 7, EvidenceKind::kProcessExit, "lost", at(10'500), at(10'000), true,
              1, out);
    close(11'000, 2, true);
    EXPECT_EQ(closed().survivorStallMs, 0);
    EXPECT_EQ(closed().rejoinMs, 1'000);
}

TEST_F(IncidentBookTest, OfTheJobAsAWholeOnlyTheSurvivorsSideCounts) {
    lose(kWholeJob, true, 4);
    committed(10'300);
    EXPECT_THAT(close(11'000, kWholeJob, false), IsEmpty()) << "nobody was restarted";
    EXPECT_EQ(closed().survivorStallMs, 1'300);
    EXPECT_DOUBLE_EQ(closed().replicaSeconds, 4 * 1.3);
}

TEST_F(IncidentBookTest, ANewCoordinatorGoesOnWithWhatTheOneBeforeLeftOpen) {
    book.resume({{5, 2, at(1'000), at(2'000), true, 400, 6, 2},
                 {6, 3, at(1'500), at(2'500), false, 700, 0, 2}},
                8);
    EXPECT_TRUE(book.isOpen(3));
    EXPECT_THAT(reformed(3'000, {2}, 10), ElementsAre(Told(5, Kind::kReform, 2'000, 3'000)));
    EXPECT_THAT(committed(3'500, 100), ElementsAre(Told(5, Kind::kReexchange, 3'400, 3'500)));
    EXPECT_THAT(phase(3'600, 2, Kind::kRestart), IsEmpty()) << "the time before is nobody's";
    EXPECT_THAT(phase(3'700, 2, Kind::kInit), ElementsAre(Told(5, Kind::kRestart, 3'600, 3'700)));
    EXPECT_THAT(close(4'000, 2, true), ElementsAre(Told(5, Kind::kInit, 3'700, 4'000)));
    EXPECT_EQ(closed().survivorStallMs, 1'400);
    EXPECT_EQ(closed().rejoinMs, 3'000);
    EXPECT_EQ(closed().samplesRedone, 16u);
    EXPECT_DOUBLE_EQ(closed().replicaSeconds, 3 + 2 * 1.4);
    EXPECT_THAT(close(4'500, 3, true), IsEmpty());
    EXPECT_EQ(closed().survivorStallMs, 700);
    EXPECT_EQ(closed().rejoinMs, 3'000);
    lose(2, true);
    EXPECT_EQ(std::get<fact::IncidentOpened>(out.front()).incident, 9u) << "numbers go on";
}

TEST_F(IncidentBookTest, AtTheEndAllAreClosed) {
    lose(1, true);
    lose(2, true);
    out.clear();
    book.closeAll(at(12'000), "the run ended first", out);
    EXPECT_EQ(std::get<fact::IncidentClosed>(out.at(1)).outcome, "the run ended first");
    EXPECT_EQ(std::get<fact::IncidentClosed>(out.at(3)).incident, 2u);
    EXPECT_FALSE(book.isOpen(1) || book.isOpen(2));
}

}  // namespace
}  // namespace bulkhead::protocol
