// Shows an exported dashboard with Grafana's own components: the panels, scales, units, thresholds and legends are
// @grafana/ui and @grafana/data. What Grafana itself adds is as small here as it can be: asking Prometheus, the grid,
// and the defaults of the time series panel.
import {
  applyFieldOverrides,
  createTheme,
  type DataFrame,
  dateTime,
  FieldType,
  getFieldDisplayValues,
  standardFieldConfigEditorRegistry,
  toDataFrame,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, ThemeContext, TimeSeries } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import 'uplot/dist/uPlot.min.css';

type Target = { expr: string; legendFormat: string; refId: string; instant: boolean };
type Panel = Record<string, any> & { targets?: Target[] };
type Sample = [number, string];
type Series = { metric: Record<string, string>; value?: Sample; values?: Sample[] };

declare const DASHBOARD: { title: string; panels: Panel[] };
declare const PROMETHEUS: string;
declare const FROM: number; // seconds since 1970
declare const TO: number;

const CELL = 38; // Grafana's grid: 30 px and a gap of 8
const GAP = 8;
const CURVES = {
  // Defaults of Grafana's time series panel.
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', showPoints: 'auto',
  pointSize: 5, spanNulls: false, axisPlacement: 'auto', axisColorMode: 'text', axisBorderShow: false,
  scaleDistribution: { type: 'linear' }, stacking: { mode: 'none', group: 'A' }, thresholdsStyle: { mode: 'off' },
  hideFrom: { legend: false, tooltip: false, viz: false },
};
const theme = createTheme({ colors: { mode: 'dark' } });
const asIs = (text: string) => text;

// Grafana's application registers how properties of a field are overridden; of them this dashboard uses these.
standardFieldConfigEditorRegistry.setInit(() =>
  ['color', 'unit', 'min', 'max', 'thresholds', 'displayName', 'noValue', 'decimals', 'mappings'].map((id) => ({
    id, path: id, name: id, editor: () => null, override: () => null,
    process: (value: unknown) => value, shouldApply: () => true,
  })) as any
);

async function ask(target: Target, step: number): Promise<DataFrame[]> {
  const query = new URLSearchParams({ query: target.expr });
  if (target.instant) {
    query.set('time', `${TO}`);
  } else {
    query.set('start', `${FROM}`);
    query.set('end', `${TO}`);
    query.set('step', `${step}`);
  }
  const answer = await fetch(`${PROMETHEUS}/api/v1/query${target.instant ? '' : '_range'}?${query}`);
  const document = await answer.json();
  if (document.status !== 'success') {
    throw new Error(`${target.expr}: ${document.error}`);
  }
  return document.data.result.map((series: Series) => {
    const samples = series.values ?? [series.value!];
    const name = target.legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => series.metric[label] ?? '');
    return toDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: samples.map(([at]) => at * 1000), config: { interval: step * 1000 } },
        {
          name: 'Value', type: FieldType.number, labels: series.metric,
          values: samples.map(([, value]) => Number(value)), config: { displayNameFromDS: name || undefined },
        },
      ],
    });
  });
}

function Curves({ panel, frames, width, height }: { panel: Panel; frames: DataFrame[]; width: number; height: number }) {
  const timeRange = { from: dateTime(FROM * 1000), to: dateTime(TO * 1000), raw: { from: 'now-1h', to: 'now' } };
  return (
    <TimeSeries frames={frames} timeRange={timeRange} timeZone="utc" width={width} height={height}
      legend={panel.options.legend} />
  );
}

function Numbers({ panel, frames, width, height }: { panel: Panel; frames: DataFrame[]; width: number; height: number }) {
  const values = getFieldDisplayValues({
    data: frames, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: asIs, theme,
  });
  // Grafana's "horizontal" puts one below the other, anything else beside each other in a panel that is wide.
  const stacked = panel.options.orientation === 'horizontal';
  const share = (whole: number) => Math.floor((whole - GAP * (values.length - 1)) / values.length);
  return (
    <div style={{ display: 'flex', flexDirection: stacked ? 'column' : 'row', gap: GAP }}>
      {values.map((value, position) => (
        <BigValue key={position} value={value.display} theme={theme} count={values.length}
          width={stacked ? width : share(width)} height={stacked ? share(height) : height}
          colorMode={panel.options.colorMode} textMode={panel.options.textMode} graphMode={panel.options.graphMode}
          text={panel.options.text} />
      ))}
    </div>
  );
}

async function framesOf(panel: Panel): Promise<DataFrame[]> {
  const width = (panel.gridPos.w * innerWidth) / 24;
  const finest = parseInt(panel.interval ?? '15s', 10);
  const step = Math.max(finest, Math.ceil((TO - FROM) / width / 15) * 15);
  const data = (await Promise.all(panel.targets!.map((target) => ask(target, step)))).flat();
  const defaults = panel.fieldConfig.defaults;
  const color = panel.type === 'stat' ? { mode: 'thresholds' } : { mode: 'palette-classic' };
  const frames = applyFieldOverrides({
    data, fieldConfig: { ...panel.fieldConfig, defaults: { color, ...defaults } }, replaceVariables: asIs, theme, timeZone: 'utc',
  });
  frames.forEach((frame, index) =>
    frame.fields.forEach((field) => {
      field.config.custom = { ...CURVES, ...defaults.custom };
      field.state = { ...field.state, seriesIndex: index };
    })
  );
  return frames;
}

function Shown({ panel, frames }: { panel: Panel; frames: DataFrame[] }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (innerWidth - GAP) / 24;
  const place = { position: 'absolute' as const, left: GAP + x * column, top: 48 + y * CELL };
  if (panel.type === 'row') {
    return <div style={{ ...place, font: theme.typography.h5.fontSize, fontSize: 16, paddingTop: 8 }}>{panel.title}</div>;
  }
  const [width, height] = [w * column - GAP, h * CELL - GAP];
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(inner, tall) =>
          !frames.length ? <div>No data</div>
          : panel.type === 'stat' ? <Numbers panel={panel} frames={frames} width={inner} height={tall} />
          : <Curves panel={panel} frames={frames} width={inner} height={tall} />}
      </PanelChrome>
    </div>
  );
}

async function main() {
  const shown = await Promise.all(
    DASHBOARD.panels.map(async (panel) => ({ panel, frames: panel.type === 'row' ? [] : await framesOf(panel) }))
  );
  document.body.style.cssText = `margin: 0; background: ${theme.colors.background.canvas}; color: ${theme.colors.text.primary};
    font-family: ${theme.typography.fontFamily}; font-size: 14px`;
  createRoot(document.getElementById('page')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles isExtensionSidebarOpen={false} />
      <div style={{ position: 'absolute', left: GAP, top: 12, fontSize: 18 }}>{DASHBOARD.title}</div>
      {shown.map(({ panel, frames }) => <Shown key={panel.id} panel={panel} frames={frames} />)}
    </ThemeContext.Provider>
  );
}

main().catch((error) => {
  document.body.textContent = `${error.stack ?? error}`;
});
