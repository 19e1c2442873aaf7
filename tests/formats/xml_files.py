"""Files in XML as programs and people write them, for the tests of the formats."""

from transformer_mt.formats.android import AndroidStrings
from transformer_mt.formats.qt import QtLinguist
from transformer_mt.formats.resx import Resx
from transformer_mt.formats.tmx import Tmx
from transformer_mt.formats.xliff import Xliff

LANGUAGES = ("en", "de")

XLIFF_1 = """<?xml version="1.0" encoding="UTF-8"?>
<!-- made by hand -->
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file original='a.html' source-language="en-US" target-language = "de"  datatype="html">
    <header><tool tool-id="x" tool-name="X &amp; Y"/></header>
    <body>
      <group id="g"
             restype="x">
        <trans-unit id="1" >
          <source>Hello <g id="1">big &amp; <x id="2"/> world</g>!</source>
          <!-- a comment with <source>tags</source> -->
          <note>For the &lt;title&gt;</note>
        </trans-unit>
        <trans-unit id="2"><source>Open</source><target state="final">Öffnen</target></trans-unit>
        <trans-unit id='3' approved='yes'>
          <source>Close</source>
          <target   state = 'new'
            xml:lang='de'>Zu</target>
        </trans-unit>
        <trans-unit id="4" translate="no"><source>NULL</source></trans-unit>
        <trans-unit id="5" resname="five">
          <source>1 &lt; 2<ph id="1">&lt;br/&gt;</ph><mrk mtype="protected">Acme</mrk></source>
          <target/>
        </trans-unit>
        <trans-unit id="6">
          <source><![CDATA[<p>Hello & bye</p>]]></source>
          <alt-trans><source>x</source><target>y</target></alt-trans>
        </trans-unit>
        <trans-unit id="7"><source>Draft</source>
          <target state="needs-translation">D</target></trans-unit>
        <trans-unit id="8"><source>   </source></trans-unit>
        <trans-unit id="9">
          <source>One. Two.</source>
          <seg-source><mrk mtype="seg" mid="0">One.</mrk> <mrk
            mtype="seg" mid="1">Two.</mrk></seg-source>
        </trans-unit>
      </group>
      <group id="h" translate="no"><trans-unit id="10"><source>Code</source></trans-unit></group>
    </body>
  </file>
</xliff>
"""

XLIFF_2 = """<?xml version="1.0"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0"
  xmlns:mtc="urn:oasis:names:tc:xliff:matches:2.0"
  version="2.0" srcLang="en">
  <file id="f1">
    <unit id="u1" name="greeting">
      <mtc:matches><mtc:match ref="#m1">
        <source>Hi</source><target>Hallo</target></mtc:match></mtc:matches>
      <originalData><data id="d1">&lt;b></data></originalData>
      <segment id="s1">
        <source>Hello <pc id="1" dataRefStart="d1">World</pc><ph id='2'/> &gt;</source>
      </segment>
      <ignorable><source> </source></ignorable>
      <segment state="initial">
        <source>Second <mrk id="m1" translate="no">Name &amp; Co</mrk>.</source>
        <target></target>
      </segment>
    </unit>
    <group id="g1">
      <unit id="u2"><notes><note>n</note></notes>
        <segment state="reviewed"><source>Yes</source><target>Ja</target></segment></unit>
      <unit id="u3" translate="no"><segment><source>No</source></segment></unit>
    </group>
  </file>
</xliff>
"""

TMX = """<?xml version="1.0" encoding="UTF-8" ?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header creationtool="x" creationtoolversion="1" segtype="sentence" o-tmf="x" adminlang="en"
    srclang="en-US" datatype="plaintext"/>
  <body>
    <tu tuid="one">
      <prop type="x">y</prop>
      <tuv xml:lang="en-US">
        <seg>Press <bpt i="1">&lt;b&gt;</bpt>OK<ept i="1">&lt;/b&gt;</ept> <hi>now</hi>.</seg>
      </tuv>
      <tuv xml:lang="fr"><seg>Appuyez.</seg></tuv>
    </tu>
    <tu>
      <tuv xml:lang="EN-us"><seg>A
      long &amp; wide line</seg></tuv>
      <tuv xml:lang="DE-DE"><seg>Eine lange Zeile</seg></tuv>
    </tu>
    <tu><tuv xml:lang="en"><seg>Flat</seg></tuv></tu>
    <tu><tuv xml:lang="fr"><seg>Seulement</seg></tuv></tu>
    <tu><tuv xml:lang="en"><seg>MT</seg></tuv>
    <tuv xml:lang="de" creationtool="transformer_mt"><seg>MÜ</seg></tuv></tu>
  </body>
</tmx>
"""

QT = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="de_DE" sourcelanguage="en">
<context>
    <name>MainWindow</name>
    <message>
        <location filename="../main.cpp" line="12"/>
        <source>&amp;Open &quot;%1&quot;</source>
        <translation type="unfinished"></translation>
    </message>
    <message>
        <source>Done</source>
        <translation>Fertig</translation>
    </message>
    <message numerus="yes">
        <source>%n file(s)</source>
        <comment>count</comment>
        <translation type="unfinished">
            <numerusform></numerusform>
            <numerusform></numerusform>
        </translation>
    </message>
    <message numerus="yes">
        <source>%n day(s)</source>
        <translation>
            <numerusform>%n Tag</numerusform>
            <numerusform>%n Tage</numerusform>
        </translation>
    </message>
    <message>
        <source>Gone</source>
        <translation type="vanished">Weg</translation>
    </message>
    <message>
        <source>Draft</source>
        <translation type="unfinished">Entwurf</translation>
    </message>
    <message id="bare">
        <source>Bell<byte value="x7"/></source>
    </message>
</context>
</TS>
"""

ANDROID = r"""<?xml version="1.0" encoding="utf-8"?>
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2"
    xmlns:tools="http://schemas.android.com/tools" tools:locale="en">
    <!-- The name -->
    <string name="app" translatable="false">Acme</string>
    <string name="welcome">Don\'t panic, <b>%1$s</b>!\nIt\u2019s &lt;i>fine&lt;/i></string>
    <string name="quoted">"  It's   here  "</string>
    <string name="wrapped">
        Two
        lines
    </string>
    <string name="left">You have <xliff:g id="count" example="5">%1$d</xliff:g> left</string>
    <string name="at">\@home \\ \"x\" \?</string>
    <string name="ref">@string/app</string>
    <string name="html"><![CDATA[<a href=\"x\">Terms & more</a>]]></string>
    <string name="empty"/>
    <plurals name="songs">
        <item quantity="one">%d song</item>
        <item quantity="other">%d songs</item>
    </plurals>
    <string-array name="planets">
        <item>Mercury</item>
        <item>Venus</item>
    </string-array>
    <string-array name="codes" translatable="false"><item>A</item></string-array>
    <color name="red">#f00</color>
</resources>
"""

RESX = """<?xml version="1.0" encoding="utf-8"?>
<root>
  <xsd:schema id="root" xmlns:xsd="http://www.w3.org/2001/XMLSchema">
    <xsd:element name="data"/></xsd:schema>
  <resheader name="resmimetype"><value>text/microsoft-resx</value></resheader>
  <data name="Hello" xml:space="preserve">
    <value>Hello &lt;b&gt;{0}&lt;/b&gt;
  and welcome </value>
    <comment>shown first</comment>
  </data>
  <data name="Icon" type="System.Resources.ResXFileRef, System.Windows.Forms">
    <value>a.ico</value></data>
  <data name="bytes" mimetype="application/x-microsoft.net.object.bytearray.base64">
    <value>AAA=</value></data>
  <data name="&gt;&gt;button.Name"><value>button</value></data>
  <data name="Bye"><value>Bye</value></data>
  <data name="None"><value /></data>
</root>
"""

FILES = {
    "xliff_1": (Xliff, XLIFF_1),
    "xliff_2": (Xliff, XLIFF_2),
    "tmx": (Tmx, TMX),
    "qt": (QtLinguist, QT),
    "android": (AndroidStrings, ANDROID),
    "resx": (Resx, RESX),
}
