// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/report.h"

#include <gmock/gmock.h>

#include "tests/campaign/story.h"

namespace bulkhead::campaign {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Report, hasVerdictsFaultsAndIncidentsAndNeedsNothingElse) {
    Story story;
    story.train(0, 1000, 4).campaign(1000, {.maxStallMs = 500}).train(1000, 2000, 4);
    story.fault(2000, 1, 1).incident(2010, 1, 1).train(2000, 4000, 3).back(4000, 1, 300, 2000);
    story.add(5000, model::CampaignSkipped{1, 2, "replica 2 was starting"}).train(4000, 6000, 4);
    model::CampaignEnded end{1, model::CampaignOutcome::kFailed, "stall too long", {}};
    end.verdicts = judge(story.state, story.view(), Story::at(6000), true);
    story.add(6000, end);
    const std::string html = reportHtml(story.state, story.view(), "demo-1", Story::at(9000));
    for (const char* part :
         {"<title>calm on demo-1</title>", ">failed<", "stall too long", "Longest stall",
          "Kill replica 2", "skipped: replica 2 was starting", "rejoined at step 40",
          "detect 300 ms", "fetch 1.7 s", "1 of 2", "class=\"step\"", "prefers-color-scheme: dark"})
        EXPECT_THAT(html, HasSubstr(part));
    for (const char* outside : {"http://", "https://", "<script", "src=", "@import"})
        EXPECT_THAT(html, Not(HasSubstr(outside)));
}

TEST(Report, whatAFileOrAJobSaysIsTextOnly) {
    Story story;
    story.campaign(1000, {});
    const std::string html =
        reportHtml(story.state, story.view(), "<img onerror=x>", Story::at(2000));
    EXPECT_THAT(html, HasSubstr("A &lt;b&gt;quiet&lt;/b&gt; one."));
    EXPECT_THAT(html, Not(HasSubstr("<img")));
    EXPECT_THAT(html, HasSubstr("in progress"));
}

}  // namespace
}  // namespace bulkhead::campaign
