// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QColor>
#include <QFont>
#include <QObject>
#include <QPalette>
#include <array>

#include "app/models/labels.h"

class QApplication;
class QWidget;

namespace bulkhead::ui {

enum class Scheme { kLight, kDark };

/// Every colour the console uses, by what it is for. State colours follow Okabe and Ito, so that
/// they stay apart for colour-blind eyes; words or shapes always stand beside them.
struct Tokens {
    QColor window, surface, raised, border, strong;
    QColor text, muted, faint;
    QColor accent, onAccent, selection;
    QColor good, busy, notice, warning, bad;
    QColor fetch, replay, join, start, stall;
    QColor low, even, high;        ///< heat map: below, at and above the mean
    std::array<QColor, 6> series;  ///< chart lines, in order of use

    QColor of(Tone tone) const;
    QColor of(model::ReplicaState state) const;
    QColor of(model::IncidentPhaseKind phase) const;
};

const Tokens& tokensOf(Scheme scheme);

/// Distances, on a grid of 8 pixels.
struct Space {
    static constexpr int kHalf = 4;
    static constexpr int kOne = 8;
    static constexpr int kTwo = 16;
    static constexpr int kThree = 24;
};

/// The scheme in use. One per application, made in main() (or a test) and handed to whoever paints
/// by `theme()`, which is valid while it lives. Thread: the GUI's.
class Theme final : public QObject {
    Q_OBJECT
  public:
    explicit Theme(QApplication& app, Scheme scheme);
    ~Theme() override;

    Scheme scheme() const { return scheme_; }
    const Tokens& tokens() const { return tokensOf(scheme_); }
    /// Palette, style sheet and fonts of the whole application, at once.
    void setScheme(Scheme scheme);

    /// Text of `delta` points more or less than the normal one.
    static QFont font(int delta = 0, QFont::Weight weight = QFont::Normal);
    static QFont mono(int delta = 0);

  Q_SIGNALS:
    void changed();

  private:
    QApplication& app_;
    Scheme scheme_;
};

/// The application's theme. Precondition: one lives.
Theme& theme();

/// Shows a widget and what is in it in shades of grey, or again as it is.
void setColorless(QWidget* widget, bool colorless);

/// `top` over `below` with `share` 0..1 of it.
/// For text on a coloured ground: the dark or the light one, whichever contrasts more.
QColor inkOn(const QColor& ground);
QColor blend(const QColor& below, const QColor& top, double share);

}  // namespace bulkhead::ui
