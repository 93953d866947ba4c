// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/theme.h"

#include <QApplication>
#include <QFile>
#include <QFontDatabase>
#include <QGraphicsColorizeEffect>
#include <QStyleFactory>
#include <cmath>

/// Resources of a static library are not there by themselves; Qt wants this outside of namespaces.
static void loadResources() {
    Q_INIT_RESOURCE(console);
}

namespace bulkhead::ui {
namespace {

Theme* current = nullptr;

constexpr int kPointSize = 9;

Tokens darkTokens() {
    Tokens t;
    t.window = 0x11161b;
    t.surface = 0x171d23;
    t.raised = 0x1f272f;
    t.border = 0x2b3540;
    t.strong = 0x44525f;
    t.text = 0xe4e9ee;
    t.muted = 0x9caab7;
    t.faint = 0x80909e;
    t.accent = 0x5cabe8;
    t.onAccent = 0x0b1620;
    t.selection = 0x1d3449;
    t.good = 0x35b58a;
    t.busy = 0x62b8ee;
    t.notice = 0xd7a6c6;
    t.warning = 0xeba63f;
    t.bad = 0xf07a4b;
    t.fetch = 0x62b8ee;
    t.replay = 0x4d90d6;
    t.join = 0xcf8ab4;
    t.start = 0xc9bd56;
    t.stall = 0xe8703a;
    t.low = 0x3f7fc4;
    t.even = 0x232c35;
    t.high = 0xf0a13a;
    t.series = {QColor(0x5cabe8), QColor(0xeba63f), QColor(0x35b58a),
                QColor(0xcf8ab4), QColor(0xe8703a), QColor(0xc9bd56)};
    return t;
}

Tokens lightTokens() {
    Tokens t;
    t.window = 0xeef1f4;
    t.surface = 0xffffff;
    t.raised = 0xf5f7f9;
    t.border = 0xd5dce3;
    t.strong = 0xa9b5c0;
    t.text = 0x18212a;
    t.muted = 0x55636f;
    t.faint = 0x5d6a76;
    t.accent = 0x1769aa;
    t.onAccent = 0xffffff;
    t.selection = 0xdcecf9;
    t.good = 0x00734f;
    t.busy = 0x1769aa;
    t.notice = 0x934878;
    t.warning = 0x8f5200;
    t.bad = 0xb03f08;
    t.fetch = 0x2b93cf;
    t.replay = 0x0067a8;
    t.join = 0xc873a3;
    t.start = 0x9c8b12;
    t.stall = 0xd55e00;
    t.low = 0x3d7fbd;
    t.even = 0xf1f3f5;
    t.high = 0xd97706;
    t.series = {QColor(0x1769aa), QColor(0xc07000), QColor(0x007d5b),
                QColor(0xa8548a), QColor(0xb8430a), QColor(0x84760d)};
    return t;
}

QPalette paletteOf(const Tokens& t) {
    QPalette p;
    p.setColor(QPalette::Window, t.window);
    p.setColor(QPalette::WindowText, t.text);
    p.setColor(QPalette::Base, t.surface);
    p.setColor(QPalette::AlternateBase, t.raised);
    p.setColor(QPalette::Text, t.text);
    p.setColor(QPalette::PlaceholderText, t.faint);
    p.setColor(QPalette::Button, t.raised);
    p.setColor(QPalette::ButtonText, t.text);
    p.setColor(QPalette::BrightText, t.bad);
    p.setColor(QPalette::Highlight, t.selection);
    p.setColor(QPalette::HighlightedText, t.text);
    p.setColor(QPalette::Link, t.accent);
    p.setColor(QPalette::ToolTipBase, t.raised);
    p.setColor(QPalette::ToolTipText, t.text);
    p.setColor(QPalette::Light, t.raised);
    p.setColor(QPalette::Midlight, t.border);
    p.setColor(QPalette::Mid, t.border);
    p.setColor(QPalette::Dark, t.strong);
    p.setColor(QPalette::Shadow, t.window.darker(130));
    for (const auto role : {QPalette::Text, QPalette::ButtonText, QPalette::WindowText})
        p.setColor(QPalette::Disabled, role, t.faint);
    return p;
}

/// The style sheet names colours by token ("@border"); longer names are replaced first.
QString sheetOf(const Tokens& t) {
    QFile file(QStringLiteral(":/themes/console.qss"));
    if (!file.open(QIODevice::ReadOnly)) return {};
    QString sheet = QString::fromUtf8(file.readAll());
    const std::array<std::pair<const char*, QColor>, 15> names = {{{"@onAccent", t.onAccent},
                                                                   {"@selection", t.selection},
                                                                   {"@surface", t.surface},
                                                                   {"@warning", t.warning},
                                                                   {"@window", t.window},
                                                                   {"@raised", t.raised},
                                                                   {"@border", t.border},
                                                                   {"@strong", t.strong},
                                                                   {"@accent", t.accent},
                                                                   {"@muted", t.muted},
                                                                   {"@faint", t.faint},
                                                                   {"@text", t.text},
                                                                   {"@good", t.good},
                                                                   {"@busy", t.busy},
                                                                   {"@bad", t.bad}}};
    for (const auto& [name, color] : names) sheet.replace(QLatin1String(name), color.name());
    return sheet;
}

}  // namespace

QColor Tokens::of(Tone tone) const {
    switch (tone) {
        case Tone::kNeutral:
            return text;
        case Tone::kGood:
            return good;
        case Tone::kBusy:
            return busy;
        case Tone::kNotice:
            return notice;
        case Tone::kWarning:
            return warning;
        case Tone::kBad:
            return bad;
        case Tone::kMuted:
            return muted;
    }
    return text;
}

QColor Tokens::of(model::ReplicaState state) const {
    using enum model::ReplicaState;
    switch (state) {
        case kTraining:
            return good;
        case kStarting:
            return start;
        case kFetching:
            return fetch;
        case kReplaying:
            return replay;
        case kProven:
            return join;
        case kFailed:
            return bad;
        case kBackingOff:
            return warning;
        case kDrained:
        case kHeld:
        case kAbsent:
            return muted;
    }
    return muted;
}

QColor Tokens::of(model::IncidentPhaseKind phase) const {
    using enum model::IncidentPhaseKind;
    switch (phase) {
        case kDetect:
            return stall;
        case kDecide:
            return warning;
        case kReform:
            return join;
        case kReexchange:
            return replay;
        case kRestart:
            return strong;
        case kInit:
            return start;
        case kFetch:
            return fetch;
        case kReplay:
            return replay;
        case kJoin:
            return join;
    }
    return strong;
}

const Tokens& tokensOf(Scheme scheme) {
    static const Tokens dark = darkTokens();
    static const Tokens light = lightTokens();
    return scheme == Scheme::kDark ? dark : light;
}

Theme::Theme(QApplication& app, Scheme scheme) : app_(app), scheme_(scheme) {
    current = this;
    loadResources();
    QApplication::setStyle(QStyleFactory::create(QStringLiteral("Fusion")));
    setScheme(scheme);
}

Theme::~Theme() {
    current = nullptr;
}

void Theme::setScheme(Scheme scheme) {
    scheme_ = scheme;
    QApplication::setFont(font());
    QApplication::setPalette(paletteOf(tokens()));
    app_.setStyleSheet(sheetOf(tokens()));
    Q_EMIT changed();
}

QFont Theme::font(int delta, QFont::Weight weight) {
    // Roboto's figures are all of one width, which Qt 6.4 could not ask another font for.
    QFont font;
    font.setFamilies({QStringLiteral("Roboto"), QStringLiteral("DejaVu Sans")});
    font.setPointSize(kPointSize + delta);
    font.setWeight(weight);
    return font;
}

QFont Theme::mono(int delta) {
    QFont font;
    font.setFamilies({QStringLiteral("DejaVu Sans Mono"), QStringLiteral("monospace")});
    font.setPointSize(kPointSize - 1 + delta);
    return font;
}

Theme& theme() {
    Q_ASSERT(current != nullptr);
    return *current;
}

void setColorless(QWidget* widget, bool colorless) {
    if (colorless == (widget->graphicsEffect() != nullptr)) return;
    QGraphicsColorizeEffect* effect = nullptr;
    if (colorless) {
        effect = new QGraphicsColorizeEffect;
        effect->setColor(Qt::black);  // adds nothing to the greys
    }
    widget->setGraphicsEffect(effect);
}

/// Relative luminance of WCAG 2.
static double luminance(const QColor& color) {
    const auto linear = [](double c) {
        return c <= 0.03928 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(color.redF()) + 0.7152 * linear(color.greenF()) +
           0.0722 * linear(color.blueF());
}

QColor inkOn(const QColor& ground) {
    // Black and white contrast with this luminance equally well.
    constexpr double kBetween = 0.179;
    return luminance(ground) > kBetween ? QColor(0x10181f) : QColor(0xf7f9fa);
}

QColor blend(const QColor& below, const QColor& top, double share) {
    const auto mix = [share](float a, float b) { return a + (b - a) * static_cast<float>(share); };
    return QColor::fromRgbF(mix(below.redF(), top.redF()), mix(below.greenF(), top.greenF()),
                            mix(below.blueF(), top.blueF()));
}

}  // namespace bulkhead::ui
